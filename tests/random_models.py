"""Small models with random weights, saved as ours are: for tests that need a model and not what it learned."""

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
         "corpus.sequence_length=32")


def save_random(folder: Path, tokenizer_folder: Path, name: str = "bert@tiny", changes: tuple[str, ...] = SIZES,
                labels: tuple[str, ...] = ()) -> Path:
    """A model of this recipe; with `labels`, one that classifies texts."""
    tokenizer = Tokenizer.load(tokenizer_folder)
    chosen = recipe(name, [*changes, f"tokenizer.vocab_size={tokenizer.vocab_size}"])
    torch.manual_seed(0)
    if labels:
        heads: dict[str, HeadSpec] = {"pooler": Pooler(), "task": ClassHead(len(labels))}
        corpus = chosen.settings.corpus
        card = TaskConfig("task", "classify", labels, heads, corpus.single, corpus.pair, 32, ("accuracy",),
                    parse_task_options("classify", {"counts": [1] * len(labels)}))
        network = Network(chosen.settings.network, tokenizer.vocab_size, heads)
        stemma.save(Model(chosen, tokenizer, network.eval(), task_configs={"task": card}), folder)
    else:
        stemma.save(Model(chosen, tokenizer, build_network(chosen).eval()), folder)
    return folder
