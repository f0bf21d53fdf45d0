"""The built-in training methods. Their modules are imported when a run begins: recipes are checked without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from stemma.registry import register
from stemma.schema.base import Count
from stemma.schema.training import MethodSettings

if TYPE_CHECKING:
    from stemma.training.method import Method, MethodSetup


@register("method", "gradient_descent", MethodSettings)
def gradient_descent(settings: MethodSettings, setup: MethodSetup) -> Method:
    from stemma.training.gradient_descent import GradientDescent

    return GradientDescent(setup)


# Keys that describe gradient descent.
NO_GRADIENTS = ("training.learning_rate", "training.warmup*", "training.optimizer.*", "training.schedule.*",
                "training.clip_norm", "training.z_loss", "training.ema", "training.batch_schedule.*",
                "training.micro_batch_size", "training.spike_factor", "training.layer_decay*",
                "training.frozen", "training.unfreeze", "training.fresh", "training.precision")


class CountingSettings(MethodSettings):
    """Counting, once through the text."""

    unused_keys: ClassVar[tuple[str, ...]] = NO_GRADIENTS

    has_revisions: ClassVar[bool] = False  # counts become a model at the end

    memory: Count = 1024  # megabytes for sorting and merging counts, which are on disk; the finished tables come on top


@register("method", "kneser_ney", CountingSettings)
def kneser_ney(settings: CountingSettings, setup: MethodSetup) -> Method:
    """The next token, with modified Kneser-Ney smoothing (Chen & Goodman 1998)."""
    from stemma.training.count_ngrams import CountNgrams

    return CountNgrams(settings, setup)


@register("method", "neighbor_counts", CountingSettings)
def neighbor_counts(settings: CountingSettings, setup: MethodSetup) -> Method:
    """A token between its neighbours."""
    from stemma.training.count_neighbors import CountNeighbors

    return CountNeighbors(settings, setup)
