"""Any number of threads may ask one model: inference changes nothing about it, so nobody notices anybody else."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest
from asking import PROMPTS, all_models, questions, same

import stemma
from stemma.generation.generate import generate

THREADS, ROUNDS = 8, 1


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, stemma.Model]:
    return all_models(tmp_path_factory.mktemp("models"))


def test_eight_threads_get_the_answers_that_one_gets(models):
    asked = questions(models)
    expected = {name: ask() for name, ask in asked.items()}
    assert len({str(expected[name]) for name in ("memory 2", "memory 8", "memory 40")}) == 3  # else it would not show
    before = {name: _state(model) for name, model in models.items()}
    together = threading.Barrier(THREADS)

    def work(number: int) -> list[tuple[str, Any]]:
        names = list(asked) * ROUNDS
        together.wait(60)
        return [(name, asked[name]()) for name in names[number:] + names[:number]]  # each begins with another one

    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(chain.from_iterable(pool.map(work, range(THREADS))))
    assert len(answers) == THREADS * ROUNDS * len(asked)
    assert [name for name, found in answers if not same(found, expected[name])] == []
    assert {name: _state(model) for name, model in models.items()} == before


def test_texts_that_are_streamed_side_by_side_do_not_mix(models):
    """Two unfinished streams and a whole text between their pieces, in one thread."""
    alone = ["".join(stemma.stream(models["gpt2"], prompt, tokens=20, seed=2)) for prompt in PROMPTS[:2]]
    streams = [stemma.stream(models["gpt2"], prompt, tokens=20, seed=2) for prompt in PROMPTS[:2]]
    pieces: list[list[str]] = [[], []]
    going = [0, 1]
    while going:
        for number in list(going):
            piece = next(streams[number], None)
            if piece is None:
                going.remove(number)
            else:
                pieces[number].append(piece)
                generate(models["gpt2"], PROMPTS, tokens=16, seed=1)
    assert ["".join(parts) for parts in pieces] == alone


def _state(model: stemma.Model) -> list[Any]:
    """Everything about the modules that is not a tensor's content, and the settings."""
    return [model.network.settings, *({name: id(value) for name, value in vars(module).items()}
                                      for module in model.network.modules())]
