"""Curriculum: which objectives are active at a step and a fraction of the budget.

ERNIE masks larger and larger units, one stage after another (arXiv:1904.09223); ERNIE 2.0 adds its objectives one by
one and keeps the earlier ones (arXiv:1907.12412). `start_fraction` and `end_fraction` are fractions of the budget;
`start_step` is absolute.
"""

from __future__ import annotations

from collections.abc import Sequence

from stemma.errors import UserError
from stemma.objectives import Objective
from stemma.objectives.base import TrainableObjective
from stemma.recipe_loading import Recipe
from stemma.schema.objective import ObjectiveSettings
from stemma.training.budget import Budget


def has_started(objective: TrainableObjective, step: int, progress: float) -> bool:
    """Whether the objective has started; a fine-tuning task has no schedule and always has."""
    settings = getattr(objective, "settings", None)
    return not isinstance(settings, ObjectiveSettings) or (
        settings.start_step <= step and settings.start_fraction <= progress)


def active_objectives(objectives: Sequence[Objective], step: int, progress: float) -> list[Objective]:
    """The active objectives. In a gap between stages, those that stopped last continue."""
    started = [objective for objective in objectives if has_started(objective, step, progress)]
    active = [objective for objective in started if progress < objective.settings.end_fraction]
    last = max((objective.settings.end_fraction for objective in started), default=1.0)
    return active or [objective for objective in started if objective.settings.end_fraction == last]


def check_curriculum(recipe: Recipe, budget: Budget) -> None:
    """Refuse a schedule in which some objectives are never trained, naming all of them. Budgets in minutes cannot be
    checked; for budgets in tokens the number of steps is estimated from full sequences."""
    settings = recipe.settings
    step_tokens: float = settings.training.batch_size * settings.corpus.sequence_length
    if (schedule := settings.training.batch_schedule) is not None:
        step_tokens /= schedule.steps_factor()
    steps = {"steps": int(budget.amount), "tokens": int(budget.amount / step_tokens) + 1}.get(budget.unit)
    if steps is None:
        return
    estimate = "" if budget.unit == "steps" else f", about {steps:,} steps"
    problems = [problem for name, objective in settings.objective.items()
                if (problem := _never_trained(name, objective, steps))]
    if problems:
        raise UserError(f"the budget of {budget.describe()}{estimate} ends without some tasks of {recipe.label} ever "
                        "being trained; change when they start, take them out with remove=objective.NAME, or give more",
                        problems)


def _never_trained(name: str, settings: ObjectiveSettings, steps: int) -> tuple[str, str] | None:
    if settings.start_step >= steps:
        return f"objective.{name}.start_step = {settings.start_step:,}", f"the last step is number {steps - 1:,}"
    first = max(settings.start_step, int(settings.start_fraction * steps))
    while first / steps < settings.start_fraction:
        first += 1
    if first >= steps or first / steps >= settings.end_fraction:
        key = "start_fraction" if first > settings.start_step or not settings.start_step else "start_step"
        return (f"objective.{name}.{key} = {getattr(settings, key):g}",
                f"no step lies between there and end_fraction = {settings.end_fraction:g}")
    return None
