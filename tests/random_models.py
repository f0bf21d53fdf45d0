"""Saved small models with random weights, for tests that need no trained model."""

from __future__ import annotations

from pathlib import Path

import torch

import stemma
from stemma.model import Model
from stemma.network.heads import ClassHead, HeadSpec, Pooler
from stemma.network.network import Network
from stemma.objectives import build_network
from stemma.recipe_loading import recipe
from stemma.schema.task_options import parse_task_options
from stemma.task_config import TaskConfig
from stemma.text.tokenizer import Tokenizer

SIZES = ("network.width=32", "network.heads=2", "network.layers=2", "network.feedforward=64",
         "corpus.sequence_length=32", "network.initialization.zero_output=false")


def save_random(folder: Path, tokenizer_folder: Path, name: str = "bert@tiny", changes: tuple[str, ...] = SIZES,
                labels: tuple[str, ...] = ()) -> Path:
    """Save a model of a recipe; with `labels`, a text classifier."""
    tokenizer = Tokenizer.load(tokenizer_folder)
    model_recipe = recipe(name, [*changes, f"tokenizer.vocab_size={tokenizer.vocab_size}"])
    torch.manual_seed(0)
    if labels:
        heads: dict[str, HeadSpec] = {"pooler": Pooler(), "task": ClassHead(len(labels))}
        corpus = model_recipe.settings.corpus
        config = TaskConfig("task", "classify", labels, heads, corpus.single, corpus.pair, 32, ("accuracy",),
                            parse_task_options("classify", {"counts": [1] * len(labels)}))
        network = Network(model_recipe.settings.network, tokenizer.vocab_size, heads)
        stemma.save(Model(model_recipe, tokenizer, network.eval(), task_configs={"task": config}), folder)
    else:
        stemma.save(Model(model_recipe, tokenizer, build_network(model_recipe).eval()), folder)
    return folder
