"""Phases of a run: short sequences first, full length after (`corpus.first_phase`).

If the first phase has a warm-up of its own, the schedule runs once per phase (BERT-wwm, arXiv:1906.08101). Otherwise
one schedule covers the whole budget, as in BERT.
"""

from __future__ import annotations

from dataclasses import dataclass

from stemma.schema.corpus import CorpusSettings, FirstPhaseSettings
from stemma.schema.recipe import RecipeSettings


@dataclass(frozen=True)
class Phase:
    """One run of the schedule, between two fractions of the budget."""

    start_fraction: float
    end_fraction: float
    warmup_steps: int
    batch_rows: int  # rows per step, without `batch_schedule`
    sequence_length: int  # in tokens
    steps_factor: float = 1.0  # of the number of steps, if the batch grows (`batch_schedule`)

    def progress(self, budget_progress: float) -> float:
        """Used fraction of the phase, given the used fraction of the budget."""
        return (budget_progress - self.start_fraction) / (self.end_fraction - self.start_fraction)


def first_phase(settings: CorpusSettings) -> FirstPhaseSettings | None:
    """The first phase, if its sequences are shorter than those of the second."""
    phase = settings.first_phase
    return phase if phase is not None and phase.sequence_length < settings.sequence_length else None


def batch_rows(settings: RecipeSettings, length: int, progress: float = 1.0) -> int:
    """Batch size in rows at this sequence length, after this fraction of the budget."""
    phase, schedule = first_phase(settings.corpus), settings.training.batch_schedule
    rows = settings.training.batch_size
    if phase is not None and length == phase.sequence_length and phase.batch_size is not None:
        rows = phase.batch_size
    return rows if schedule is None else max(1, round(rows * schedule.fraction_at(progress)))


def build_phases(settings: RecipeSettings) -> list[Phase]:
    """One phase, or two if each has its own schedule."""
    training, phase, longest = settings.training, first_phase(settings.corpus), settings.corpus.sequence_length
    schedule = training.batch_schedule

    def build(start: float, end: float, warmup_steps: int, length: int) -> Phase:
        factor = 1.0 if schedule is None else schedule.steps_factor(start, end)
        return Phase(start, end, warmup_steps, batch_rows(settings, length), length, factor)

    if phase is None or phase.warmup_steps is None or phase.fraction >= 1:
        return [build(0.0, 1.0, training.warmup_steps, longest if phase is None else phase.sequence_length)]
    return [build(0.0, phase.fraction, phase.warmup_steps, phase.sequence_length),
            build(phase.fraction, 1.0, training.warmup_steps, longest)]
