"""What the loop takes: a step's batch, and whoever hands it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stemma.objectives import Batch
from stemma.objectives.base import TrainableObjective


@dataclass(frozen=True)
class PreparedBatch:
    """One step's batch, the objectives to score it, where the feeds stood after it was taken, and the feed it is from,
    whose memory it goes on from."""

    objectives: tuple[TrainableObjective, ...]
    batch: Batch
    cursors: dict[str, list[int]]
    sampler_key: str


class BatchLoader(Protocol):
    """Where the loop's batches come from: a corpus, or the examples of a task."""

    @property
    def objectives(self) -> Sequence[TrainableObjective]:
        """All that are ever scored."""

    def get_batch(self, step: int, length: int, progress: float) -> PreparedBatch:
        """The batch of this step, when this share of the budget is used."""

    def restore(self, cursors: dict[str, list[int]]) -> None:
        """Go on where a batch's `positions` say."""

    def sequence_length_at(self, progress: float) -> int:
        """How long rows are when this share of the budget is used."""

    def validation_batches(self, length: int) -> Sequence[tuple[tuple[TrainableObjective, ...], Batch]]:
        """The same held-out batches each time."""

    def unigram(self) -> np.ndarray:
        """What is known of the answers beforehand: log-probabilities, for baselines."""

    def close(self) -> None:
        """Stop what runs beside."""
