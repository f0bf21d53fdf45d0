"""Helper processes; the functions they run must be importable, so they are Python's own or Stemma's."""

import operator
import os
import signal
import time

import pytest

from stemma.corpus import process_pool
from stemma.corpus.tokenize_worker import TokenizeOptions, TokenizeWorker
from stemma.errors import UserError
from stemma.text.tokenizer import Tokenizer


def test_answers_come_back_in_order():
    """operator.itemgetter("x") is a maker: it gives a function of one item."""
    items = [{"x": number} for number in range(50)]
    assert list(process_pool.parallel_map(operator.itemgetter, "x", items, 2)) == list(range(50))


def test_items_are_asked_for_only_as_they_are_needed():
    taken = []

    def items():
        for number in range(1000):
            taken.append(number)
            yield {"x": number}

    answers = process_pool.parallel_map(operator.itemgetter, "x", items(), 2)
    assert next(answers) == 0
    assert len(taken) <= 2 * 2 + 1
    answers.close()


def test_an_error_in_a_worker_is_raised_here_as_it_was():
    with pytest.raises(KeyError, match="x"):
        list(process_pool.parallel_map(operator.itemgetter, "x", [{"y": 1}], 1))


def test_a_maker_that_fails_is_an_error_of_the_first_answer(tokenizer_folder):
    work = TokenizeOptions(Tokenizer.load(tokenizer_folder).backend.to_str(), "auto", "/no/such/word/list")
    with pytest.raises(UserError, match="word list"):
        list(process_pool.parallel_map(TokenizeWorker, work, [[("text", True, 0)]], 1))


@pytest.mark.timeout(30)
def test_a_worker_that_dies_is_noticed_at_once():
    with pytest.raises(process_pool.WorkerDiedError):
        list(process_pool.parallel_map(operator.methodcaller, "__call__", [_Exit()] * 3, 1))


@pytest.mark.timeout(30)
def test_closing_early_ends_the_processes(monkeypatch):
    started = []
    start = process_pool._start

    def remembered():
        started.append(start())
        return started[-1]

    monkeypatch.setattr(process_pool, "_start", remembered)
    answers = process_pool.parallel_map(operator.itemgetter, "x", ({"x": number} for number in range(10**6)), 2)
    next(answers)
    answers.close()
    assert started and all(process.poll() is not None for process in started)


@pytest.mark.timeout(30)
def test_a_killed_worker_is_noticed(monkeypatch):
    started = []
    start = process_pool._start

    def remembered():
        started.append(start())
        return started[-1]

    monkeypatch.setattr(process_pool, "_start", remembered)

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
