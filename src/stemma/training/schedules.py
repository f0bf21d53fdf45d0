"""Learning-rate schedules, as factors of `training.learning_rate`, the peak of every schedule.

Warm-up and the 1 / sqrt schedules count steps. Decays that end with the budget go by `progress`, its used fraction, so
that they work for budgets in steps, tokens and minutes. A schedule is a function of its settings and a `SchedulePoint`.
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
    """A point in training: the number of the update (`step`, from 1) and the used fraction of the budget.

    `warmup_progress` is the progress at which the warm-up ends: warmup_steps / steps for a budget in steps.
    With progress = step / steps, the linear schedule is that of transformers; with (step - 1) / steps, the fraction
    used before this update, no update has a learning rate of zero.
    """

    step: int
    warmup_steps: int
    progress: float
    warmup_progress: float

    @property
    def warmup_fraction(self) -> float:
        """Completed fraction of the warm-up."""
        return self.step / self.warmup_steps if self.step < self.warmup_steps else 1.0

    @property
    def remaining_fraction(self) -> float:
        """Remaining fraction of the budget after the warm-up."""
        return 1 - decay_progress(self.progress, self.warmup_progress)


def lr_factor(settings: ScheduleSettings, step: int, warmup_steps: int, progress: float,
              warmup_progress: float) -> float:
    """The factor of the schedule of the recipe."""
    point = SchedulePoint(step, warmup_steps, progress, warmup_progress)
    factor: float = registry.get("schedule", settings.kind).build(settings, point)
    return factor


class LinearSettings(ScheduleSettings):
    """Linear warm-up, then linear decay to zero at the last step (BERT)."""

    kind: Literal["linear"]


@register("schedule", "linear", LinearSettings)
def linear(settings: LinearSettings, point: SchedulePoint) -> float:
    return point.warmup_fraction if point.warmup_fraction < 1 else point.remaining_fraction


class NoamSettings(ScheduleSettings):
    """Linear warm-up, then decay as 1 / sqrt(step) (arXiv:1706.03762, section 5.3)."""

    kind: Literal["noam"]


@register("schedule", "noam", NoamSettings)
def noam(settings: NoamSettings, point: SchedulePoint) -> float:
    # width^-0.5 * min(step^-0.5, step * warmup^-1.5), divided by its value at the peak, step = warmup
    return min(point.warmup_fraction, math.sqrt(max(point.warmup_steps, 1) / point.step))


class CosineSettings(ScheduleSettings):
    """Linear warm-up, then cosine decay to `floor` times the peak (GPT)."""

    kind: Literal["cosine"]
    floor: NonNegative = 0.0


@register("schedule", "cosine", CosineSettings)
def cosine(settings: CosineSettings, point: SchedulePoint) -> float:
    if point.warmup_fraction < 1:
        return point.warmup_fraction
    return settings.floor + (1 - settings.floor) * (1 - math.cos(math.pi * point.remaining_fraction)) / 2


class InverseSqrtSettings(ScheduleSettings):
    """Constant over the warm-up steps, then decay as 1 / sqrt(step) (T5)."""

    kind: Literal["inverse_sqrt"]


@register("schedule", "inverse_sqrt", InverseSqrtSettings)
def inverse_sqrt(settings: InverseSqrtSettings, point: SchedulePoint) -> float:
    # 1 / sqrt(max(step, warmup)), divided by its value over the warm-up: no rise
    return min(1.0, math.sqrt(max(point.warmup_steps, 1) / point.step))


class ConstantSettings(ScheduleSettings):
    """Linear warm-up, then constant."""

    kind: Literal["constant"]


@register("schedule", "constant", ConstantSettings)
def constant(settings: ConstantSettings, point: SchedulePoint) -> float:
    return point.warmup_fraction


class SlantedTriangularSettings(ScheduleSettings):
    """Linear rise over the fraction `cut` of the budget, then linear decay to 1 / `ratio` (arXiv:1801.06146)."""

    kind: Literal["slanted_triangular"]
    cut: OpenFraction = 0.1
    ratio: Positive = 32.0


@register("schedule", "slanted_triangular", SlantedTriangularSettings)
def slanted_triangular(settings: SlantedTriangularSettings, point: SchedulePoint) -> float:
    # The paper's cut is a fraction of the whole budget; training.warmup_steps has no effect.
    if point.progress < settings.cut:
        height = point.progress / settings.cut
    else:
        height = 1 - decay_progress(point.progress, settings.cut)
    return (1 + height * (settings.ratio - 1)) / settings.ratio


class ExponentialSettings(ScheduleSettings):
    """Linear warm-up, constant until the fraction `hold` of the budget, then exponential decay to `floor` times the
    peak: division by a constant after each epoch, as in many recurrent language models, made continuous."""

    kind: Literal["exponential"]
    hold: BelowOne = 0.0
    floor: OpenFraction = 0.01

    size_keys = ("hold", "floor")


@register("schedule", "exponential", ExponentialSettings)
def exponential(settings: ExponentialSettings, point: SchedulePoint) -> float:
    return point.warmup_fraction * math.exp(math.log(settings.floor) * decay_progress(point.progress, settings.hold))


class WarmupStableDecaySettings(ScheduleSettings):
    """Linear warm-up, constant, then decay to `floor` times the peak over the last fraction `decay` of the budget
    (arXiv:2404.06395): linear, or 1 - sqrt as in arXiv:2405.18392 and ModernBERT."""

    kind: Literal["warmup_stable_decay"]
    decay: Decay = 0.2
    shape: Literal["linear", "one_minus_sqrt"] = "linear"
    floor: BelowOne = 0.0


@register("schedule", "warmup_stable_decay", WarmupStableDecaySettings)
def warmup_stable_decay(settings: WarmupStableDecaySettings, point: SchedulePoint) -> float:
    if point.warmup_fraction < 1:
        return point.warmup_fraction
    # in a short budget the warm-up may end inside the decay
    decayed = decay_progress(point.progress, max(1 - settings.decay, point.warmup_progress))
    fall = decayed if settings.shape == "linear" else math.sqrt(decayed)
    return settings.floor + (1 - settings.floor) * (1 - fall)


def decay_progress(progress: float, start: float) -> float:
    """Progress between `start` and the end of the budget, from 0 to 1."""
    if progress >= 1:
        return 1.0
    return max(0.0, (progress - start) / (1 - start)) if start < 1 else 0.0
