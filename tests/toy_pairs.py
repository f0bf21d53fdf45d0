"""A toy translation task with one translation per word, and networks small enough to learn it in seconds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from conftest import SEED

from stemma.exchange.save import save
from stemma.model import Model
from stemma.network.network import Network
from stemma.objectives import build_objectives, head_specs
from stemma.recipe_loading import recipe, required_special_tokens
from stemma.text.train_tokenizer import train_tokenizer

WORDS = ["ink", "lamp", "page", "leaf", "tree", "river", "noon", "clerk", "text", "copy"]
SMALL = ["network.width=32", "network.heads=2", "network.layers=1", "network.feedforward=64", "network.dropout=0.0",
         "network.attention.dropout=0.0", "network.inner_dropout=0.0", "network.output_dropout=0.0",
         "corpus.sequence_length=32"]
LOUD = ["network.initialization.spread=0.15"]  # a larger initialization, because the network is narrow
# a smaller one for these, which would memorize the pairs (dev loss of three seeds: 0.4 to 0.7 with a plain normal, 0.16
# to 0.21 with this)
QUIET = ["network.initialization.embedding=0.3", "network.initialization.distribution=truncated_normal"]
BY_INPUT = ("t5", "prefix-lm")  # initialized by fan-in, and trained with relative step sizes
ONE_STACK = ("unilm", "prefix-lm", "gpt2")  # these need two layers to find the next word


def translated(words: Sequence[str], shift: int = 3) -> list[str]:
    return [WORDS[(WORDS.index(word) + shift) % len(WORDS)] for word in words]


def pairs(count: int, seed: int = 0, longest: int = 2, shift: int = 3) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    sources = [[rng.choice(WORDS) for _ in range(rng.randint(1, longest))] for _ in range(count)]
    return [(" ".join(words), " ".join(translated(words, shift))) for words in sources]


def write_pairs(file: Path, made: Sequence[tuple[str, str]]) -> Path:
    file.write_text("".join(f"{source}\t{target}\n" for source, target in [("source", "target"), *made]))
    return file


def save_model(folder: Path, name: str, *changes: str, more_places: int = 0) -> Path:
    """Save a randomly initialized model of a family with a vocabulary of these words."""
    chosen = recipe(f"{name}@tiny")
    small = [*SMALL, *(QUIET if name in BY_INPUT else LOUD)]
    small += ["network.decoder.layers=1"] if chosen.settings.network.decoder else []
    small += ["network.layers=2"] if name in ONE_STACK else []
    chosen = recipe(f"{name}@tiny", [*small, *changes])
    tokenizer = train_tokenizer(iter([" ".join(WORDS) + " first second :"] * 4), "word", 140, lowercase=True,
                                roles=required_special_tokens(chosen) | {"padding", "unknown", "end"})
    size = tokenizer.vocab_size + more_places
    chosen = chosen.with_changes({"tokenizer.kind": "word", "tokenizer.vocab_size": size}, "test")
    torch.manual_seed(SEED)
    network = Network(chosen.settings.network, size, head_specs(build_objectives(chosen)))
    save(Model(chosen, tokenizer, network.eval()), folder)
    return folder


def rate(name: str) -> str:
    """The learning rate override of a family."""
    return f"training.learning_rate={2e-2 if name in BY_INPUT else 5e-3}"
