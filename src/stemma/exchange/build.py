"""A model with random weights, from a recipe alone."""

from __future__ import annotations

from collections.abc import Sequence

from stemma.model import Model
from stemma.objectives import build_network
from stemma.recipe_loading import Recipe, recipe


def build(name: str | Recipe, vocab_size: int | None = None, changes: Sequence[str] = ()) -> Model:
    """`vocab_size` None is the published one. Draws from torch's global generator: seed that for fixed weights."""
    chosen = name if isinstance(name, Recipe) else recipe(name, changes)
    if vocab_size is not None:
        chosen = chosen.with_changes({"tokenizer.vocab_size": vocab_size}, origin="vocab_size")
    return Model(chosen, None, build_network(chosen).eval())
