"""Toy tasks of every kind that a tiny network learns in seconds, and the network."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from conftest import OBJECTS, PLACES, SEED, SUBJECTS, VERBS, small_text

from stemma.exchange.save import save
from stemma.model import Model
from stemma.network.network import Network
from stemma.objectives import build_objectives, head_specs
from stemma.recipe_loading import recipe, required_special_tokens
from stemma.text.train_tokenizer import train_tokenizer

SMALL = ["network.width=32", "network.heads=2", "network.layers=2", "network.feedforward=64",
         "network.initialization.std=0.1", "network.initialization.zero_output=false"]
GOOD, BAD = ["reads", "repairs", "copies"], ["forgets", "numbers", "compares"]
FAST = ["training.learning_rate=3e-3", "training.batch_size=16"]


def save_model(folder: Path, name: str = "bert@tiny", *changes: str, length: int = 48, vocabulary: int = 120) -> Path:
    """Save a randomly initialized model of a family; with this vocabulary, words often have several subtokens."""
    model_recipe = recipe(name, [*SMALL, f"corpus.sequence_length={length}", *changes])
    if hasattr(model_recipe.settings.network.position, "maximum"):
        model_recipe = model_recipe.with_changes({"network.position.maximum": length}, "test")
    kind = model_recipe.settings.tokenizer.kind
    tokenizer = train_tokenizer(iter([small_text()]), kind, vocabulary if kind == "wordpiece" else 400, lowercase=True,
                                roles={*required_special_tokens(model_recipe), "padding", "unknown", "start",
                                       "separator"})
    model_recipe = model_recipe.with_changes({"tokenizer.vocab_size": tokenizer.vocab_size}, "test")
    torch.manual_seed(SEED)
    network = Network(model_recipe.settings.network, tokenizer.vocab_size, head_specs(build_objectives(model_recipe)))
    save(Model(model_recipe, tokenizer, network.eval()), folder)
    return folder


def rows(kind: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Examples as rows of a jsonl file. Single words decide the label."""
    rng = random.Random(seed)
    return [MAKERS[kind](rng) for _ in range(count)]


def write_rows(file: Path, examples: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in examples))
    return file


def write_sets(folder: Path, kind: str, train: int = 96, dev: int = 32, test: int = 0) -> dict[str, Path]:
    folder.mkdir(exist_ok=True)
    sizes = {"train": train, "dev": dev, **({"test": test} if test else {})}
    return {part: write_rows(folder / f"{kind}-{part}.jsonl", rows(kind, size, seed))
            for seed, (part, size) in enumerate(sizes.items())}


def _sentence(rng: random.Random, verb: str | None = None) -> str:
    return f"{rng.choice(SUBJECTS)} {verb or rng.choice(VERBS)} {rng.choice(OBJECTS)} {rng.choice(PLACES)}."


def _classify(rng: random.Random) -> dict[str, Any]:
    good = rng.random() < 0.5
    return {"text": _sentence(rng, rng.choice(GOOD if good else BAD)), "label": "good" if good else "bad"}


def _pair(rng: random.Random) -> dict[str, Any]:
    good = rng.random() < 0.5
    return {"text_a": _sentence(rng), "text_b": _sentence(rng, rng.choice(GOOD if good else BAD)),
            "label": "yes" if good else "no"}


def _regress(rng: random.Random) -> dict[str, Any]:
    example = _classify(rng)
    return {"text": example["text"], "score": 1.0 if example["label"] == "good" else -1.0}


def _choice(rng: random.Random) -> dict[str, Any]:
    correct = rng.randrange(3)
    options = [_sentence(rng, rng.choice(GOOD if index == correct else BAD)) for index in range(3)]
    return {"context": _sentence(rng), "question": "what then?", "options": options, "label": correct}


def _qa(rng: random.Random) -> dict[str, Any]:
    """The answer is one of two phrases; some contexts have neither."""
    context = f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} a letter."
    answer = rng.choice(["one missing leaf", "the river", ""]) if rng.random() < 0.5 else "one missing leaf"
    sentence = f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {answer or 'a letter'}."
    context = f"{sentence} {context}" if rng.random() < 0.5 else f"{context} {sentence}"
    answers = [{"text": answer, "answer_start": context.index(answer)}] if answer else []
    return {"id": str(rng.random()), "context": context, "question": "what?", "answers": answers}


def _tag(rng: random.Random) -> dict[str, Any]:
    words, tags = [], []
    for text, kind in ((rng.choice(SUBJECTS), "PER"), (rng.choice(VERBS), ""), (rng.choice(PLACES), "LOC")):
        parts = text.split()
        words += parts
        tags += [f"{'I' if index else 'B'}-{kind}" if kind else "O" for index in range(len(parts))]
    return {"words": words, "tags": tags}


def _rank(rng: random.Random) -> dict[str, Any]:
    good = rng.random() < 0.4
    return {"text_a": rng.choice(SUBJECTS[:2]), "text_b": _sentence(rng, rng.choice(GOOD if good else BAD)),
            "label": int(good)}


MAKERS = {"classify": _classify, "pair": _pair, "regress": _regress, "choice": _choice, "qa": _qa, "tag": _tag,
          "rank": _rank}
