"""A model with random weights, from a recipe alone."""

from __future__ import annotations

from collections.abc import Sequence

from stemma.model import Model
from stemma.objectives import build_network
from stemma.recipe_loading import Recipe, recipe


def build(name: str | Recipe, vocab_size: int | None = None, changes: Sequence[str] = ()) -> Model:
    """`vocab_size` None: the published one. Weights come from torch's global random generator: seed it for reproducible
    weights."""
    resolved = name if isinstance(name, Recipe) else recipe(name, changes)
    if vocab_size is not None:
        resolved = resolved.with_changes({"tokenizer.vocab_size": vocab_size}, origin="vocab_size")
    return Model(resolved, None, build_network(resolved).eval())
