"""How high the learning rate is at each update, as a factor of `training.learning_rate`, the peak of every schedule.

Warm-up and the 1 / sqrt schedules go by steps; falls that end with the budget go by `progress`, its used share, so that
they work for budgets in steps, tokens and minutes alike.
"""

from __future__ import annotations

import math

from stemma.schema import training as schema


def factor(settings: schema.ScheduleSettings, step: int, warmup_steps: int, progress: float,
           warmup_progress: float) -> float:
    """The factor for update number `step` (the first is 1), when `progress` of the budget is used.

    `warmup_progress` is the progress at which the warm-up ends: warmup_steps / steps for a budget in steps.
    With progress = step / steps, the linear schedule is that of transformers; with (step - 1) / steps, the share used
    before this update, no update is wasted on a rate of zero.
    """
    left = 1 - share(progress, warmup_progress)
    rise = step / warmup_steps if step < warmup_steps else 1.0
    match settings:
        case schema.LinearSchedule():
            return rise if rise < 1 else left
        case schema.CosineSchedule():
            return rise if rise < 1 else settings.floor + (1 - settings.floor) * (1 - math.cos(math.pi * left)) / 2
        case schema.ConstantSchedule():
            return rise
        case schema.NoamSchedule():
            # width^-0.5 * min(step^-0.5, step * warmup^-1.5), divided by its value at the peak, step = warmup
            return min(rise, math.sqrt(max(warmup_steps, 1) / step))
        case schema.InverseSqrtSchedule():
            # 1 / sqrt(max(step, warmup)), divided by its value over the warm-up: no rise
            return min(1.0, math.sqrt(max(warmup_steps, 1) / step))
        case schema.SlantedTriangularSchedule():
            # The paper's cut is a share of the whole budget; training.warmup_steps plays no part.
            height = progress / settings.cut if progress < settings.cut else 1 - share(progress, settings.cut)
            return (1 + height * (settings.ratio - 1)) / settings.ratio
        case schema.WarmupStableDecaySchedule():
            # in a budget so short that the warm-up reaches into the decay, what is left of it
            way = share(progress, max(1 - settings.decay, warmup_progress))
            fall = way if settings.shape == "linear" else math.sqrt(way)
            return rise if rise < 1 else settings.floor + (1 - settings.floor) * (1 - fall)


def share(progress: float, start: float) -> float:
    """How much of the way from `start` to the end of the budget lies behind, from 0 to 1."""
    if progress >= 1:
        return 1.0
    return max(0.0, (progress - start) / (1 - start)) if start < 1 else 0.0
