"""Small models of all kinds, and inference calls on them whose results are plain data that tests can compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from parity.reference import perturb
from seq2seq_models import build_seq2seq_model, sentences
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
    """A causal model, one with a memory, a masked one, a classifier and a translation model."""
    result = {"gpt2": stemma.load(save_model(folder / "gpt2", "gpt2@tiny")),
              "xl": stemma.load(save_model(folder / "xl", "transformer-xl@tiny", *MEMORY, length=8)),
              "bert": stemma.load(save_model(folder / "bert"))}
    for model in result.values():
        perturb(model.network, 0)
    recipe = result["bert"].recipe
    heads = {"pooler": Pooler(), "task": ClassHead(2)}
    corpus = recipe.settings.corpus
    card = TaskConfig("task", "classify", ("good", "bad"), heads, corpus.single, corpus.pair, 48, ("accuracy",),
                      parse_task_options("classify", {"counts": [1, 1]}))
    torch.manual_seed(0)
    network = Network(recipe.settings.network, result["bert"].network.vocab_size, heads).eval()
    perturb(network, 1)
    result["judge"] = stemma.Model(recipe, result["bert"].tokenizer, network, task_configs={"task": card})
    return {**result, "transformer": build_seq2seq_model("transformer")}


def inference_calls(models: dict[str, stemma.Model]) -> dict[str, Callable[[], Any]]:
    """Inference functions without arguments, by name; each returns plain data."""
    examples = [TextExample(f"line {index}", (row["text"],), None) for index, row in enumerate(rows("classify", 12))]

    def generated(kind: str, prompts: list[str] | list[list[int]], **options: Any) -> Callable[[], Any]:
        return lambda: [(completion.text, completion.tokens, completion.log_probability)
                        for completion in generate(models[kind], prompts, **options)]

    def perplexity_of(**options: Any) -> Callable[[], Any]:
        kind = "xl" if "memory" in options else "gpt2"
        return lambda: perplexity(models[kind], [Passage("text", TEXT, True)], **options)["perplexity"]

    same_length = [models["xl"].tokenizer.encode(text, special=False).ids[:4] for text in PROMPTS]
    return {
        "sampled": generated("gpt2", PROMPTS, tokens=24, seed=3, completions=2),
        "sampled otherwise": generated("gpt2", PROMPTS * 2, tokens=20, seed=4, top_k=20, batch=4),
        "greedy": generated("gpt2", PROMPTS[:1], tokens=20, greedy=True),
        "beams": generated("gpt2", PROMPTS, tokens=18, beams=3, completions=2),
        "with a memory": generated("xl", same_length, tokens=20, seed=5),
        "memory 2": perplexity_of(memory=2), "memory 8": perplexity_of(memory=8), "memory 40": perplexity_of(memory=40),
        "window": perplexity_of(length=24, stride=8),
        "continuations": lambda: [(score.log_probability, score.is_greedy) for score in score_continuations(
            models["gpt2"], PROMPTS, [" reads the letter", " the ledger", " river"])],
        "filled": lambda: fill(models["bert"], "the old [MASK] reads the [MASK]."),
        "embedded": lambda: embed(models["bert"], [row["text"] for row in rows("classify", 9)]).tolist(),
        "predicted": lambda: predict_examples(models["judge"], models["judge"].task_config(), examples),
        "translated": lambda: [(translation.text, translation.log_probability) for translation in translate(
            models["transformer"], sentences(5, 9, 3), beams=3)],
    }


def equal(result: Any, expected: Any) -> bool:
    """Whether texts, tokens and labels are equal, and numbers within the tolerance of docs/project/architecture.md."""
    if isinstance(expected, dict):
        return result.keys() == expected.keys() and all(equal(result[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return len(result) == len(expected) and all(map(equal, result, expected))
    return result == pytest.approx(expected, rel=1e-4, abs=1e-4) if isinstance(expected, float) else result == expected
