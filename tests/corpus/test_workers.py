"""`parallel_map` in worker processes. Its functions must be importable, so these are Python's own or stemma's."""

import operator
import os
import signal
import time

import pytest

from stemma.corpus import process_pool
from stemma.corpus.tokenize_worker import TokenizeOptions, TokenizeWorker
from stemma.errors import UserError
from stemma.text.tokenizer import Tokenizer


def test_results_are_in_input_order():
    """operator.itemgetter("x") builds the function that each worker applies to the items."""
    items = [{"x": index} for index in range(50)]
    assert list(process_pool.parallel_map(operator.itemgetter, "x", items, 2)) == list(range(50))


def test_items_are_read_lazily():
    items_read = []

    def items():
        for index in range(1000):
            items_read.append(index)
            yield {"x": index}

    results = process_pool.parallel_map(operator.itemgetter, "x", items(), 2)
    assert next(results) == 0
    assert len(items_read) <= 2 * 2 + 1
    results.close()


def test_an_error_in_a_worker_is_raised_in_the_caller():
    with pytest.raises(KeyError, match="x"):
        list(process_pool.parallel_map(operator.itemgetter, "x", [{"y": 1}], 1))


def test_a_worker_that_cannot_be_set_up_raises_its_error(tokenizer_folder):
    work = TokenizeOptions(Tokenizer.load(tokenizer_folder).backend.to_str(), "auto", "/no/such/word/list")
    with pytest.raises(UserError, match="word list"):
        list(process_pool.parallel_map(TokenizeWorker, work, [[("text", True, 0)]], 1))


@pytest.mark.timeout(30)
def test_a_worker_that_exits_raises_an_error():
    with pytest.raises(process_pool.WorkerDiedError):
        list(process_pool.parallel_map(operator.methodcaller, "__call__", [_Exit()] * 3, 1))


@pytest.mark.timeout(30)
def test_closing_the_results_early_stops_the_workers(monkeypatch):
    started = []
    start = process_pool._start

    def recording_start():
        started.append(start())
        return started[-1]

    monkeypatch.setattr(process_pool, "_start", recording_start)
    results = process_pool.parallel_map(operator.itemgetter, "x", ({"x": index} for index in range(10**6)), 2)
    next(results)
    results.close()
    assert started and all(process.poll() is not None for process in started)


@pytest.mark.timeout(30)
def test_a_killed_worker_raises_an_error(monkeypatch):
    started = []
    start = process_pool._start

    def recording_start():
        started.append(start())
        return started[-1]

    monkeypatch.setattr(process_pool, "_start", recording_start)

    def items():
        yield {"x": 0}
        while not started:
            time.sleep(0.01)
        os.kill(started[0].pid, signal.SIGKILL)
        yield {"x": 1}

    with pytest.raises(process_pool.WorkerDiedError):
        list(process_pool.parallel_map(operator.itemgetter, "x", items(), 1))


class _Exit:
    """Ends the process that unpickles it."""

    def __reduce__(self):
        return (os._exit, (3,))
