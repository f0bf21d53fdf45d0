"""Phases of a run, and where a step stands in its phase: short rows first, full ones after (`corpus.first_phase`).

Where the first phase states a warm-up of its own, the schedule runs once in each: up over the phase's warm-up, and down
until the phase ends (BERT-wwm, arXiv:1906.08101). Otherwise one schedule covers the whole budget, as BERT's does.
"""

from __future__ import annotations

from dataclasses import dataclass

from stemma.schema.corpus import CorpusSettings, FirstPhaseSettings
from stemma.schema.recipe import RecipeSettings


@dataclass(frozen=True)
class Phase:
    """One run of the schedule, from one share of the budget to another."""

    start_fraction: float
    end_fraction: float
    warmup_steps: int
    batch_rows: int  # of a step
    sequence_length: int  # of its rows

    def progress(self, budget_progress: float) -> float:
        """How much of the phase is behind, when this share of the budget is used."""
        return (budget_progress - self.start_fraction) / (self.end_fraction - self.start_fraction)


def first_phase(settings: CorpusSettings) -> FirstPhaseSettings | None:
    """The first phase, where its rows are shorter than those of the second."""
    phase = settings.first_phase
    return phase if phase is not None and phase.sequence_length < settings.sequence_length else None


def batch_rows(settings: RecipeSettings, length: int) -> int:
    """How many rows a step has while they are of this length."""
    phase = first_phase(settings.corpus)
    if phase is not None and length == phase.sequence_length and phase.batch_size is not None:
        return phase.batch_size
    return settings.training.batch_size


def build_phases(settings: RecipeSettings) -> list[Phase]:
    """One, or where each has a schedule of its own, two."""
    training, phase, longest = settings.training, first_phase(settings.corpus), settings.corpus.sequence_length
    first = longest if phase is None else phase.sequence_length
    if phase is None or phase.warmup_steps is None or phase.share >= 1:
        return [Phase(0.0, 1.0, training.warmup_steps, batch_rows(settings, first), first)]
    return [Phase(0.0, phase.share, phase.warmup_steps, batch_rows(settings, first), first),
            Phase(phase.share, 1.0, training.warmup_steps, batch_rows(settings, longest), longest)]
