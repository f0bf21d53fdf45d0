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
WIDE_INIT = ["network.initialization.std=0.15"]  # a larger standard deviation, because the network is narrow
# smaller for recipes with fan-in initialization, which would memorize the pairs (dev loss of three seeds: 0.4 to 0.7
# with a normal distribution, 0.16 to 0.21 with this)
NARROW_INIT = ["network.initialization.embedding_std=0.3", "network.initialization.distribution=truncated_normal"]
FAN_IN_INIT = ("t5", "prefix-lm")  # initialized by fan-in, and trained with relative step sizes
ONE_STACK = ("unilm", "prefix-lm", "gpt2")  # these need two layers to find the next word


def translated(words: Sequence[str], shift: int = 3) -> list[str]:
    return [WORDS[(WORDS.index(word) + shift) % len(WORDS)] for word in words]


def pairs(count: int, seed: int = 0, longest: int = 2, shift: int = 3) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    sources = [[rng.choice(WORDS) for _ in range(rng.randint(1, longest))] for _ in range(count)]
    return [(" ".join(words), " ".join(translated(words, shift))) for words in sources]


def write_pairs(file: Path, rows: Sequence[tuple[str, str]]) -> Path:
    file.write_text("".join(f"{source}\t{target}\n" for source, target in [("source", "target"), *rows]))
    return file


def save_model(folder: Path, name: str, *changes: str, extra_embeddings: int = 0) -> Path:
    """Save a randomly initialized model of a family with a vocabulary of these words."""
    model_recipe = recipe(f"{name}@tiny")
    small = [*SMALL, *(NARROW_INIT if name in FAN_IN_INIT else WIDE_INIT)]
    small += ["network.decoder.layers=1"] if model_recipe.settings.network.decoder else []
    small += ["network.layers=2"] if name in ONE_STACK else []
    model_recipe = recipe(f"{name}@tiny", [*small, *changes])
    tokenizer = train_tokenizer(iter([" ".join(WORDS) + " first second :"] * 4), "word", 140, lowercase=True,
                                roles=required_special_tokens(model_recipe) | {"padding", "unknown", "end"})
    size = tokenizer.vocab_size + extra_embeddings
    model_recipe = model_recipe.with_changes({"tokenizer.kind": "word", "tokenizer.vocab_size": size}, "test")
    torch.manual_seed(SEED)
    network = Network(model_recipe.settings.network, size, head_specs(build_objectives(model_recipe)))
    save(Model(model_recipe, tokenizer, network.eval()), folder)
    return folder


def rate(name: str) -> str:
    """The learning rate override of a family."""
    return f"training.learning_rate={2e-2 if name in FAN_IN_INIT else 5e-3}"
