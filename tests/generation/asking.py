"""Small models of every sort, and what can be asked of each: answers are plain data, to be compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from parity.reference import perturb
from sources import sentences, source_model
from toy_tasks import rows, save_model

import stemma
from stemma.evaluation.likelihood import score_continuations
from stemma.evaluation.perplexity import perplexity
from stemma.generation.fill import fill
from stemma.generation.generate import generate
from stemma.generation.translate import translate
from stemma.network.heads import ClassHead, Pooler
from stemma.network.network import Network
from stemma.schema.task_options import parse_task_options
from stemma.task_config import TaskConfig
from stemma.tasks.data.examples import TextExample
from stemma.tasks.embed import embed
from stemma.tasks.predict import predict_examples
from stemma.text.readers import Passage

TEXT = ("the old clerk reads the letter by the river. a young copyist forgets the ledger in the archive. "
        "the careful scribe compares the copies and numbers one missing leaf. ") * 3
MEMORY = ("network.attention.head_width=16", "network.memory.length=8", "corpus.sequence_length=8")
PROMPTS = ["the old clerk", "the young copyist forgets", "a letter by the"]


def all_models(folder: Path) -> dict[str, stemma.Model]:
    """A causal one, one with a memory, a masked one, one that answers a task, one that translates."""
    found = {"gpt2": stemma.load(save_model(folder / "gpt2", "gpt2@tiny")),
             "xl": stemma.load(save_model(folder / "xl", "transformer-xl@tiny", *MEMORY, length=8)),
             "bert": stemma.load(save_model(folder / "bert"))}
    for model in found.values():
        perturb(model.network, 0)
    chosen = found["bert"].recipe
    heads = {"pooler": Pooler(), "task": ClassHead(2)}
    card = TaskConfig("task", "classify", ("good", "bad"), heads, chosen.settings.corpus.single,
                      chosen.settings.corpus.pair,
                48, ("accuracy",), parse_task_options("classify", {"counts": [1, 1]}))
    torch.manual_seed(0)
    network = Network(chosen.settings.network, found["bert"].network.vocab_size, heads).eval()
    perturb(network, 1)
    found["judge"] = stemma.Model(chosen, found["bert"].tokenizer, network, task_configs={"task": card})
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
        "continuations": lambda: [(one.log_probability, one.is_greedy) for one in score_continuations(
            models["gpt2"], PROMPTS, [" reads the letter", " the ledger", " river"])],
        "filled": lambda: fill(models["bert"], "the old [MASK] reads the [MASK]."),
        "embedded": lambda: embed(models["bert"], [row["text"] for row in rows("classify", 9)]).tolist(),
        "predicted": lambda: predict_examples(models["judge"], models["judge"].task_config(), examples),
        "translated": lambda: [(one.text, one.log_probability) for one in translate(models["transformer"],
                                                                                    sentences(5, 9, 3), beams=3)],
    }


def same(found: Any, expected: Any) -> bool:
    """Texts, tokens and labels equal; numbers within what other batches may change (docs/project/architecture.md)."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    return found == pytest.approx(expected, rel=1e-4, abs=1e-4) if isinstance(expected, float) else found == expected
