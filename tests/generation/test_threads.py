"""Inference is thread-safe: it does not change the model, so threads that share one get the same results."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest
from inference_calls import PROMPTS, all_models, equal, inference_calls

import stemma
from stemma.generation.generate import generate

THREADS, ROUNDS = 8, 1


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, stemma.Model]:
    return all_models(tmp_path_factory.mktemp("models"))


def test_eight_threads_get_the_same_results_as_one(models):
    calls = inference_calls(models)
    expected = {name: call() for name, call in calls.items()}
    assert len({str(expected[name]) for name in ("memory 2", "memory 8", "memory 40")}) == 3  # so the test can fail
    before = {name: _state(model) for name, model in models.items()}
    barrier = threading.Barrier(THREADS)

    def work(index: int) -> list[tuple[str, Any]]:
        names = list(calls) * ROUNDS
        barrier.wait(60)
        return [(name, calls[name]()) for name in names[index:] + names[:index]]  # each thread starts with another call

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(chain.from_iterable(pool.map(work, range(THREADS))))
    assert len(results) == THREADS * ROUNDS * len(calls)
    assert [name for name, result in results if not equal(result, expected[name])] == []
    assert {name: _state(model) for name, model in models.items()} == before


def test_interleaved_streams_do_not_affect_each_other(models):
    """Two unfinished streams in one thread, with a complete generation between their chunks."""
    alone = ["".join(stemma.stream(models["gpt2"], prompt, tokens=20, seed=2)) for prompt in PROMPTS[:2]]
    streams = [stemma.stream(models["gpt2"], prompt, tokens=20, seed=2) for prompt in PROMPTS[:2]]
    pieces: list[list[str]] = [[], []]
    unfinished = [0, 1]
    while unfinished:
        for index in list(unfinished):
            piece = next(streams[index], None)
            if piece is None:
                unfinished.remove(index)
            else:
                pieces[index].append(piece)
                generate(models["gpt2"], PROMPTS, tokens=16, seed=1)
    assert ["".join(parts) for parts in pieces] == alone


def _state(model: stemma.Model) -> list[Any]:
    """The settings, and the identity of every attribute of the modules."""
    return [model.network.settings, *({name: id(value) for name, value in vars(module).items()}
                                      for module in model.network.modules())]
