"""The learning rate of each step: the schedule, run once in each phase, and its warm-up."""

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
        """Of the next step, when this share of the budget is used."""
        return self.settings.learning_rate * self.factor(state, progress)

    def factor(self, state: TrainState, budget_progress: float) -> float:
        """The schedule runs once in each phase. Warm-up goes by steps; with a budget in minutes it also ends after a
        tenth of the time."""
        number = next((n for n, phase in enumerate(self.phases) if budget_progress < phase.end_fraction),
                      len(self.phases) - 1)
        if number != state.phase:
            state.phase, state.before, state.warmup, state.warmed = number, state.step, None, 0.0
        step, progress = state.step + 1 - state.before, self.phases[number].progress(budget_progress)
        warmup = self.warmups[number] if state.warmup is None else state.warmup
        if self.budget.unit == "minutes" and step < warmup and progress >= 0.1:
            warmup = state.warmup = step
        if step <= warmup:
            state.warmed = progress
        return lr_factor(self.settings.schedule, step, warmup, progress, state.warmed)

    def _warmup_steps(self, phase: Phase) -> int:
        """The recipe's, unless it would eat the phase: then a tenth of it, and the user is told."""
        stated, amount = phase.warmup_steps, self.budget.amount * (phase.end_fraction - phase.start_fraction)
        steps = {"steps": amount, "tokens": amount / (phase.batch_rows * phase.sequence_length)}.get(self.budget.unit)
        if steps is None or stated <= steps / 2:
            return stated
        shorter = int(steps // 10)
        whole = "this budget" if len(self.phases) == 1 else f"its {phase.end_fraction - phase.start_fraction:.0%} of this budget"
        logger.warning(f"a warm-up of {pluralize(stated, 'step')} is most of {whole} ({self.budget.describe()}); "
                       f"{pluralize(shorter, 'step')} are used instead.")
        return shorter
