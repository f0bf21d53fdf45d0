"""The batch loader interface of the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stemma.objectives import Batch
from stemma.objectives.base import TrainableObjective


@dataclass(frozen=True)
class PreparedBatch:
    """The batch of one step, its objectives, the cursors of the samplers after it, and the sampler it came from, which
    selects the memory."""

    objectives: tuple[TrainableObjective, ...]
    batch: Batch
    cursors: dict[str, list[int]]
    sampler_key: str
    num_words: int = 0  # words of its rows, if the loader counts them


class BatchLoader(Protocol):
    """Source of the batches: a corpus, or the examples of a task."""

    @property
    def objectives(self) -> Sequence[TrainableObjective]:
        """All objectives of the run."""

    def get_batch(self, step: int, length: int, progress: float) -> PreparedBatch:
        """The batch of this step; `progress` is the used fraction of the budget."""

    def restore(self, cursors: dict[str, list[int]]) -> None:
        """Continue from the `cursors` of a batch."""

    def sequence_length_at(self, progress: float) -> int:
        """Sequence length at this fraction of the budget."""

    def validation_batches(self, length: int) -> Sequence[tuple[tuple[TrainableObjective, ...], Batch]]:
        """The validation batches, the same each time."""

    def unigram(self) -> np.ndarray:
        """Unigram log-probabilities of the labels, for baselines."""

    def close(self) -> None:
        """Stop background work."""
