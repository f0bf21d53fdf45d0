"""A pipeline of four stages that runs in seconds: small texts, and a classification task about their verbs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from conftest import OBJECTS, PLACES, SUBJECTS, small_text

from stemma import toml

SMALL = ["network.width=32", "network.heads=2", "network.layers=1", "network.feedforward=64", "training.batch_size=8",
         "corpus.sequence_length=32", "tokenizer.vocab_size=200", "training.precision=fp32", "training.threads=1",
         "training.checkpoint_every=2", "training.log_every=1", "training.warmup_steps=2"]
WORDS = {"good": ["copies", "reads", "repairs"], "bad": ["forgets", "numbers", "collects"]}


def examples(count: int, seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    pairs = []
    for index in range(count):
        label = ("good", "bad")[index % 2]
        verb, place = rng.choice(WORDS[label]), f"{rng.choice(PLACES)} and {rng.choice(PLACES)}"
        pairs.append((f"{rng.choice(SUBJECTS)} {verb} {rng.choice(OBJECTS)} {place}", label))
    return pairs


def write_data(folder: Path) -> None:
    (folder / "general.txt").write_text(small_text(40, seed=1))
    (folder / "domain.txt").write_text(small_text(20, seed=2).replace("letter", "charter").replace("copies", "signs"))
    for name, count, seed in (("train", 40, 3), ("dev", 20, 4), ("test", 20, 5)):
        rows = [("text", "label"), *examples(count, seed)]
        (folder / f"{name}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))


def four_stages() -> dict[str, dict[str, Any]]:
    return {"general": {"recipe": "bert@tiny", "corpus": "general.txt", "steps": 8, "changes": SMALL},
            "domain": {"corpus": "domain.txt", "steps": 8},
            "task": {"texts_of": "finetune", "epochs": 3},
            "finetune": {"task": "classify", "train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv", "epochs": 2,
                         "changes": ["training.batch_size=8", "training.checkpoint_every=2"]}}


def write_plan(folder: Path, stages: dict[str, dict[str, Any]], **header: Any) -> Path:
    path = folder / "plan.toml"
    path.write_text(toml.dumps({**header, "stages": stages}))
    return path
