"""The learning rate of each step: the schedule, run once in each phase, and its warm-up."""

from __future__ import annotations

import logging

from stemma.errors import counted
from stemma.schema.recipe import RecipeSettings
from stemma.training.budget import Budget
from stemma.training.course import Course
from stemma.training.phases import Phase, phases_of
from stemma.training.schedules import factor

logger = logging.getLogger(__name__)


class LearningRate:
    def __init__(self, settings: RecipeSettings, budget: Budget):
        self.settings, self.budget = settings.training, budget
        self.phases = phases_of(settings)
        self.warmups = [self._warmup_steps(phase) for phase in self.phases]

    def at(self, course: Course, used: float) -> float:
        """Of the next step, when this share of the budget is used."""
        return self.settings.learning_rate * self.factor(course, used)

    def factor(self, course: Course, used: float) -> float:
        """The schedule runs once in each phase. Warm-up goes by steps; with a budget in minutes it also ends after a
        tenth of the time."""
        number = next((n for n, phase in enumerate(self.phases) if used < phase.stops), len(self.phases) - 1)
        if number != course.phase:
            course.phase, course.before, course.warmup, course.warmed = number, course.step, None, 0.0
        step, progress = course.step + 1 - course.before, self.phases[number].progress(used)
        warmup = self.warmups[number] if course.warmup is None else course.warmup
        if self.budget.unit == "minutes" and step < warmup and progress >= 0.1:
            warmup = course.warmup = step
        if step <= warmup:
            course.warmed = progress
        return factor(self.settings.schedule, step, warmup, progress, course.warmed)

    def _warmup_steps(self, phase: Phase) -> int:
        """The recipe's, unless it would eat the phase: then a tenth of it, and the user is told."""
        stated, amount = phase.warmup_steps, self.budget.amount * (phase.stops - phase.starts)
        steps = {"steps": amount, "tokens": amount / (phase.rows * phase.length)}.get(self.budget.unit)
        if steps is None or stated <= steps / 2:
            return stated
        shorter = int(steps // 10)
        whole = "this budget" if len(self.phases) == 1 else f"its {phase.stops - phase.starts:.0%} of this budget"
        logger.warning(f"a warm-up of {counted(stated, 'step')} is most of {whole} ({self.budget.describe()}); "
                       f"{counted(shorter, 'step')} are used instead.")
        return shorter
