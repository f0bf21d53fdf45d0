"""Stages of a curriculum: which tasks are trained at a step, when some share of the budget is used.

ERNIE hides larger and larger units, one stage after another (arXiv:1904.09223); ERNIE 2.0 adds its tasks one by one and
keeps the earlier ones (arXiv:1907.12412). Shares are of the budget, so that a curriculum fits any; steps are absolute.
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
    """Whether it was trained by then; a task of fine-tuning, which has no schedule, always was."""
    settings = getattr(objective, "settings", None)
    return not isinstance(settings, ObjectiveSettings) or (settings.start_step <= step and settings.starts <= progress)


def active_objectives(objectives: Sequence[Objective], step: int, progress: float) -> list[Objective]:
    """The tasks of a moment. No moment is without one: where a recipe leaves a gap, those that ended last go on."""
    begun = [objective for objective in objectives if has_started(objective, step, progress)]
    going = [objective for objective in begun if progress < objective.settings.stops]
    last = max((objective.settings.stops for objective in begun), default=1.0)
    return going or [objective for objective in begun if objective.settings.stops == last]


def check_curriculum(recipe: Recipe, budget: Budget) -> None:
    """Refuse a schedule in which some task is never trained, all of them at once. A budget in minutes has no number of
    steps; one in tokens has about as many as full windows make."""
    settings = recipe.settings
    places = settings.training.batch_size * settings.corpus.sequence_length
    steps = {"steps": int(budget.amount), "tokens": int(budget.amount / places) + 1}.get(budget.unit)
    if steps is None:
        return
    about = "" if budget.unit == "steps" else f", about {steps:,} steps"
    problems = [problem for name, task in settings.objective.items() if (problem := _never_trained(name, task, steps))]
    if problems:
        raise UserError(f"the budget of {budget.describe()}{about} ends without some tasks of {recipe.label} ever "
                        "being trained; change when they start, take them out with remove=objective.NAME, or give more",
                        problems)


def _never_trained(name: str, settings: ObjectiveSettings, steps: int) -> tuple[str, str] | None:
    if settings.start_step >= steps:
        return f"objective.{name}.start_step = {settings.start_step:,}", f"the last step is number {steps - 1:,}"
    first = max(settings.start_step, int(settings.starts * steps))
    while first / steps < settings.starts:
        first += 1
    if first >= steps or first / steps >= settings.stops:
        key = "starts" if first > settings.start_step or not settings.start_step else "start_step"
        return (f"objective.{name}.{key} = {getattr(settings, key):g}",
                f"no step lies between there and stops = {settings.stops:g}")
    return None
