"""A note if a small masked model hardly learns because of its absolute positions.

A masked token is predicted from its neighbours, so the first thing to learn is to attend to positions nearby. With
absolute positions (learned, as in BERT, or sinusoidal) every pair of positions learns this by itself; with rotary or
relative positions all pairs learn it together. So a small BERT that starts as published stays near the unigram baseline
for millions of tokens. The laptop sizes start with heads that attend to the neighbours (network/head_offsets.py), and
need the note only if the run is very short (`docs/learning-fast.md` has the measurements).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from stemma.recipe_loading import Recipe
from stemma.training.callbacks import Callback

if TYPE_CHECKING:
    from stemma.training.trainer import Trainer

logger = logging.getLogger(__name__)
STALL_NATS = 0.5  # a model that predicts from neighbours is further below its unigram baseline
CHECK_AFTER = 0.5  # fraction of the budget
STALLING_POSITIONS = ("learned", "sinusoidal")
LAPTOP_SIZES = ("tiny", "mini", "midi")


def stall_remedy(recipe: Recipe) -> str | None:
    """What helps a small masked model with absolute positions; None for other models."""
    settings = recipe.settings
    network = settings.network
    masked = any(objective.masks_tokens for objective in settings.objective.values())
    if not masked or network.decoder is not None or network.position.kind not in STALLING_POSITIONS:
        return None
    size = recipe.size if recipe.size in LAPTOP_SIZES else "tiny"
    if network.initialization.head_offsets:
        return f"the run is too short for this network. Train longer, or use modernbert@{size}, which learns faster"
    change = "network.initialization.head_offsets=[-1,1]" if network.position.kind == "learned" else \
        "network.position.kind=rotary network.position.maximum=512 (then the network is no longer that of " \
        f"{recipe.title})"
    return (f"{network.position.kind} positions need millions of tokens before a small masked model attends to the "
            f"neighbours of a mask. Train longer, use modernbert@{size}, or set {change}")


class StallNote(Callback):
    """One warning per run, at the first validation in the second half of the budget."""

    def __init__(self, remedy: str):
        self.remedy, self.checked = remedy, False

    def on_validation(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        loss, unigram = metrics.get("validation_loss"), metrics.get("unigram_loss")
        if self.checked or loss is None or unigram is None or trainer.state.used < CHECK_AFTER:
            return
        self.checked = True
        if unigram - loss < STALL_NATS:
            below = f"{unigram - loss:.2f} nats below" if loss < unigram else f"{loss - unigram:.2f} nats above"
            logger.warning(f"after {trainer.state.tokens:,} tokens the held-out loss is {below} the unigram baseline: "
                           f"{self.remedy}.")
