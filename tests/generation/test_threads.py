"""Any number of threads may ask one model: inference changes nothing about it, so nobody notices anybody else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest
import torch
from parity.reference import perturb
from sources import sentences, source_model
from toy_tasks import rows, save_model

import stemma
from stemma.exchange.cards import Card
from stemma.generation.fill import fill
from stemma.generation.generate import generate
from stemma.generation.score import score_continuations
from stemma.generation.translate import translate
from stemma.network.heads import ClassHead, Pooler
from stemma.network.network import Network
from stemma.tasks.data.examples import TextExample
from stemma.tasks.embed import embed
from stemma.tasks.perplexity import perplexity
from stemma.tasks.predicting import predictions
from stemma.text.readers import Passage

THREADS, ROUNDS = 8, 3
TEXT = ("the old clerk reads the letter by the river. a young copyist forgets the ledger in the archive. "
        "the careful scribe compares the copies and numbers one missing leaf. ") * 3
MEMORY = ("network.attention.head_width=16", "network.memory.length=8", "corpus.sequence_length=8")
PROMPTS = ["the old clerk", "the young copyist forgets", "a letter by the"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, stemma.Model]:
    """A causal one, one with a memory, a masked one, one that answers a task, one that translates."""
    folder = tmp_path_factory.mktemp("models")
    found = {"gpt2": stemma.load(save_model(folder / "gpt2", "gpt2@tiny")),
             "xl": stemma.load(save_model(folder / "xl", "transformer-xl@tiny", *MEMORY, length=8)),
             "bert": stemma.load(save_model(folder / "bert"))}
    for model in found.values():
        perturb(model.network, 0)
    chosen = found["bert"].recipe
    heads = {"pooler": Pooler(), "task": ClassHead(2)}
    card = Card("task", "classify", ("good", "bad"), heads, chosen.settings.corpus.single, chosen.settings.corpus.pair,
                48, ("accuracy",), {"counts": [1, 1]})
    torch.manual_seed(0)
    network = Network(chosen.settings.network, found["bert"].network.vocabulary, heads).eval()
    perturb(network, 1)
    found["judge"] = stemma.Model(chosen, found["bert"].tokenizer, network, cards={"task": card})
    return {**found, "transformer": source_model("transformer")}


def questions(models: dict[str, stemma.Model]) -> dict[str, Callable[[], Any]]:
    """What is asked, by name; every answer is plain data."""
    examples = [TextExample(f"line {number}", (row["text"],), None) for number, row in enumerate(rows("classify", 12))]

    def written(kind: str, prompts: list[str] | list[list[int]], **options: Any) -> Callable[[], Any]:
        return lambda: [(one.text, one.tokens, one.log_probability) for one in generate(models[kind], prompts,
                                                                                        **options)]

    def perplexed(**options: Any) -> Callable[[], Any]:
        kind = "xl" if "memory" in options else "gpt2"
        return lambda: perplexity(models[kind], [Passage("text", TEXT, True)], **options)["perplexity"]

    equal = [models["xl"].tokenizer.encode(text, special=False).ids[:4] for text in PROMPTS]
    return {
        "sampled": written("gpt2", PROMPTS, tokens=24, seed=3, completions=2),
        "sampled otherwise": written("gpt2", PROMPTS * 2, tokens=20, seed=4, top_k=20, batch=4),
        "greedy": written("gpt2", PROMPTS[:1], tokens=20, greedy=True),
        "beams": written("gpt2", PROMPTS, tokens=18, beams=3, completions=2),
        "with a memory": written("xl", equal, tokens=20, seed=5),
        "memory 2": perplexed(memory=2), "memory 8": perplexed(memory=8), "memory 40": perplexed(memory=40),
        "window": perplexed(length=24, stride=8),
        "continuations": lambda: [(one.log_probability, one.greedy) for one in score_continuations(
            models["gpt2"], PROMPTS, [" reads the letter", " the ledger", " river"])],
        "filled": lambda: fill(models["bert"], "the old [MASK] reads the [MASK]."),
        "embedded": lambda: embed(models["bert"], [row["text"] for row in rows("classify", 9)]).tolist(),
        "predicted": lambda: predictions(models["judge"], models["judge"].card(), examples),
        "translated": lambda: [(one.text, one.log_probability) for one in translate(models["transformer"],
                                                                                    sentences(5, 9, 3), beams=3)],
    }


def same(found: Any, expected: Any) -> bool:
    """Texts, tokens and labels equal; numbers within what other batches may change (docs/architecture.md)."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    return found == pytest.approx(expected, rel=1e-4, abs=1e-4) if isinstance(expected, float) else found == expected


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
