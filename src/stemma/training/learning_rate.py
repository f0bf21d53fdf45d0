"""The learning rate of each step: warm-up and schedule, run once per phase."""

from __future__ import annotations

import logging

from stemma.errors import pluralize
from stemma.schema.recipe import RecipeSettings
from stemma.training.budget import Budget
from stemma.training.phases import Phase, build_phases
from stemma.training.schedules import lr_factor
from stemma.training.train_state import TrainState

logger = logging.getLogger(__name__)


class LearningRate:
    def __init__(self, settings: RecipeSettings, budget: Budget):
        self.settings, self.budget = settings.training, budget
        self.phases = build_phases(settings)
        self.warmups = [self._warmup_steps(phase) for phase in self.phases]

    def at(self, state: TrainState, progress: float) -> float:
        """Learning rate of the next step; `progress` is the used fraction of the budget."""
        return self.settings.learning_rate * self.factor(state, progress)

    def factor(self, state: TrainState, budget_progress: float) -> float:
        """The schedule's factor for the next step. Warm-up is counted in steps; with a budget in minutes it ends after
        a tenth of the phase at the latest."""
        index = next((index for index, phase in enumerate(self.phases) if budget_progress < phase.end_fraction),
                     len(self.phases) - 1)
        if index != state.phase:
            state.phase, state.before, state.warmup, state.warmed = index, state.step, None, 0.0
        step, progress = state.step + 1 - state.before, self.phases[index].progress(budget_progress)
        warmup = self.warmups[index] if state.warmup is None else state.warmup
        if self.budget.unit == "minutes" and step < warmup and progress >= 0.1:
            warmup = state.warmup = step
        if step <= warmup:
            state.warmed = progress
        return lr_factor(self.settings.schedule, step, warmup, progress, state.warmed)

    def _warmup_steps(self, phase: Phase) -> int:
        """Warm-up steps of the recipe; if they exceed half of the phase, a tenth of it, with a warning."""
        fraction = phase.end_fraction - phase.start_fraction
        warmup_steps, amount = phase.warmup_steps, self.budget.amount * fraction
        steps = {"steps": amount, "tokens": phase.steps_factor * amount / (phase.batch_rows * phase.sequence_length)
                 }.get(self.budget.unit)
        if steps is None or warmup_steps <= steps / 2:
            return warmup_steps
        shorter = int(steps // 10)
        budget = "this budget" if len(self.phases) == 1 else f"its {fraction:.0%} of this budget"
        logger.warning(f"a warm-up of {pluralize(warmup_steps, 'step')} is most of {budget} "
                       f"({self.budget.describe()}); {pluralize(shorter, 'step')} "
                       f"{'is' if shorter == 1 else 'are'} used instead.")
        return shorter
