"""How high the learning rate is at each update, as a factor of `training.learning_rate`, the peak of every schedule.

Warm-up and the 1 / sqrt schedules go by steps; decays that end with the budget go by `progress`, its used share, so
that they work for budgets in steps, tokens and minutes alike. A schedule is a function of its settings and a
`SchedulePoint`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from stemma import registry
from stemma.registry import register
from stemma.schema.base import BelowOne, NonNegative, OpenFraction, Positive
from stemma.schema.training import Decay, ScheduleSettings


@dataclass(frozen=True)
class SchedulePoint:
    """Where training stands: update number `step` (the first is 1), when `progress` of the budget is used.

    `warmup_progress` is the progress at which the warm-up ends: warmup_steps / steps for a budget in steps.
    With progress = step / steps, the linear schedule is that of transformers; with (step - 1) / steps, the share used
    before this update, no update is wasted on a learning rate of zero.
    """

    step: int
    warmup_steps: int
    progress: float
    warmup_progress: float

    @property
    def warmup_fraction(self) -> float:
        """How much of the warm-up is done."""
        return self.step / self.warmup_steps if self.step < self.warmup_steps else 1.0

    @property
    def remaining_fraction(self) -> float:
        """How much of the budget after the warm-up is left."""
        return 1 - decay_progress(self.progress, self.warmup_progress)


def lr_factor(settings: ScheduleSettings, step: int, warmup_steps: int, progress: float,
              warmup_progress: float) -> float:
    """The factor of the recipe's schedule."""
    found: float = registry.get("schedule", settings.kind).build(settings, SchedulePoint(step, warmup_steps, progress,
                                                                                 warmup_progress))
    return found


class LinearSettings(ScheduleSettings):
    """Up in a straight line over the warm-up, down in a straight line to nothing at the last step (BERT)."""

    kind: Literal["linear"]


@register("schedule", "linear", LinearSettings)
def linear(settings: LinearSettings, point: SchedulePoint) -> float:
    return point.warmup_fraction if point.warmup_fraction < 1 else point.remaining_fraction


class NoamSettings(ScheduleSettings):
    """Up in a straight line over the warm-up, then down as 1 / sqrt(step) (arXiv:1706.03762, section 5.3)."""

    kind: Literal["noam"]


@register("schedule", "noam", NoamSettings)
def noam(settings: NoamSettings, point: SchedulePoint) -> float:
    # width^-0.5 * min(step^-0.5, step * warmup^-1.5), divided by its value at the peak, step = warmup
    return min(point.warmup_fraction, math.sqrt(max(point.warmup_steps, 1) / point.step))


class CosineSettings(ScheduleSettings):
    """Up in a straight line over the warm-up, then down half a cosine to `floor` times the peak (GPT)."""

    kind: Literal["cosine"]
    floor: NonNegative = 0.0


@register("schedule", "cosine", CosineSettings)
def cosine(settings: CosineSettings, point: SchedulePoint) -> float:
    if point.warmup_fraction < 1:
        return point.warmup_fraction
    return settings.floor + (1 - settings.floor) * (1 - math.cos(math.pi * point.remaining_fraction)) / 2


class InverseSqrtSettings(ScheduleSettings):
    """At the peak over the warm-up, then down as 1 / sqrt(step) (T5)."""

    kind: Literal["inverse_sqrt"]


@register("schedule", "inverse_sqrt", InverseSqrtSettings)
def inverse_sqrt(settings: InverseSqrtSettings, point: SchedulePoint) -> float:
    # 1 / sqrt(max(step, warmup)), divided by its value over the warm-up: no rise
    return min(1.0, math.sqrt(max(point.warmup_steps, 1) / point.step))


class ConstantSettings(ScheduleSettings):
    """Up in a straight line over the warm-up, then level."""

    kind: Literal["constant"]


@register("schedule", "constant", ConstantSettings)
def constant(settings: ConstantSettings, point: SchedulePoint) -> float:
    return point.warmup_fraction


class SlantedTriangularSettings(ScheduleSettings):
    """A short steep rise over the share `cut` of all steps, a long fall to 1 / `ratio` (arXiv:1801.06146)."""

    kind: Literal["slanted_triangular"]
    cut: OpenFraction = 0.1
    ratio: Positive = 32.0


@register("schedule", "slanted_triangular", SlantedTriangularSettings)
def slanted_triangular(settings: SlantedTriangularSettings, point: SchedulePoint) -> float:
    # The paper's cut is a share of the whole budget; training.warmup_steps plays no part.
    height = point.progress / settings.cut if point.progress < settings.cut else 1 - decay_progress(point.progress,
                                                                                                    settings.cut)
    return (1 + height * (settings.ratio - 1)) / settings.ratio


class WarmupStableDecaySettings(ScheduleSettings):
    """Up over the warm-up, level, and down to `floor` times the peak over the last share `decay` of the budget
    (arXiv:2404.06395); with 1 - sqrt of the way in place of a straight line as in arXiv:2405.18392 and ModernBERT."""

    kind: Literal["warmup_stable_decay"]
    decay: Decay = 0.2
    shape: Literal["linear", "one_minus_sqrt"] = "linear"
    floor: BelowOne = 0.0


@register("schedule", "warmup_stable_decay", WarmupStableDecaySettings)
def warmup_stable_decay(settings: WarmupStableDecaySettings, point: SchedulePoint) -> float:
    if point.warmup_fraction < 1:
        return point.warmup_fraction
    # in a budget so short that the warm-up reaches into the decay, what is left of it
    way = decay_progress(point.progress, max(1 - settings.decay, point.warmup_progress))
    fall = way if settings.shape == "linear" else math.sqrt(way)
    return settings.floor + (1 - settings.floor) * (1 - fall)


def decay_progress(progress: float, start: float) -> float:
    """How much of the way from `start` to the end of the budget lies behind, from 0 to 1."""
    if progress >= 1:
        return 1.0
    return max(0.0, (progress - start) / (1 - start)) if start < 1 else 0.0
