"""Batches of examples for the training loop, in a new order each epoch; of several tasks, the batches of all are
shuffled together (MT-DNN, arXiv:1901.11504, algorithm 1).

The order of an epoch follows from the seed and its number, so the position is two numbers: epoch and batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby

import numpy as np

from stemma.model import Model
from stemma.objectives.batch import Batch, Target
from stemma.tasks.objectives.base import EncodedExample, TaskObjective
from stemma.training.loader import PreparedBatch

INFERENCE_TOKENS = 8192  # places at once where nothing is learnt


@dataclass(frozen=True)
class TaskDataset:
    """A task, and its examples in rows."""

    objective: TaskObjective
    train: list[EncodedExample]
    dev: list[EncodedExample]
    batch_size: int  # examples of a step


class FinetuneLoader:
    """The loop's source of batches."""

    def __init__(self, model: Model, datasets: Sequence[TaskDataset], seed: int, max_length: int):
        self.model, self.datasets, self.seed, self.max_length = model, list(datasets), seed, max_length
        self.objectives = [lesson.objective for lesson in datasets]
        self.epoch = self.batch = 0
        self._batch_order = lru_cache(maxsize=2)(self._shuffled_batches)

    def steps_in_epoch(self) -> int:
        return sum(len(batch_indices(lesson.train, lesson.batch_size, None)) for lesson in self.datasets)

    def get_batch(self, step: int, length: int, progress: float) -> PreparedBatch:
        order = self._batch_order(self.epoch)
        task, chosen = order[self.batch]
        lesson = self.datasets[task]
        batch = lesson.objective.collate(self.model, [lesson.train[number] for number in chosen])
        self.epoch, self.batch = (self.epoch, self.batch + 1) if self.batch + 1 < len(order) else (self.epoch + 1, 0)
        return PreparedBatch((lesson.objective,), batch, {"examples": [self.epoch, self.batch]}, "examples")

    def restore(self, cursors: dict[str, list[int]]) -> None:
        self.epoch, self.batch = cursors.get("examples", [0, 0])

    def sequence_length_at(self, progress: float) -> int:
        return self.max_length

    def validation_batches(self, length: int) -> list[tuple[tuple[TaskObjective, ...], Batch]]:
        return [((lesson.objective,), batch) for lesson in self.datasets for batch in
                equalize_totals([batch for _, batch in inference_batches(self.model, lesson.objective,
                                                                         _with_target(lesson.dev))])]

    def unigram(self) -> np.ndarray:
        return np.zeros(0)  # learners know their answers' frequencies themselves

    def close(self) -> None:
        pass

    def _shuffled_batches(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        """(task, numbers of the examples) of every batch of an epoch."""
        rng = np.random.default_rng([self.seed, epoch, 5])
        batches = [(number, batch) for number, lesson in enumerate(self.datasets)
                   for batch in batch_indices(lesson.train, lesson.batch_size, rng)]
        return [batches[number] for number in rng.permutation(len(batches))]


def _with_target(items: Sequence[EncodedExample]) -> list[EncodedExample]:
    return [item for item in items if item.target is not None]


def batch_indices(items: Sequence[EncodedExample], size: int, rng: np.random.Generator | None) -> list[np.ndarray]:
    """Numbers of the items of each batch: `size` of them at most, of equally many rows and any length. Without `rng`,
    nothing is shuffled."""
    made: list[np.ndarray] = []
    order = np.arange(len(items)) if rng is None else rng.permutation(len(items))
    rows = np.array([len(item.sequences) for item in items])
    for count in np.unique(rows):
        alike = order[rows[order] == count]
        made += np.array_split(alike, -(-len(alike) // size))
    return made


def equalize_totals(batches: Sequence[Batch]) -> list[Batch]:
    """The same batches with the mean of their totals, so that the mean of their losses is that over all examples: there
    are fewer long ones in a batch than short ones."""
    def even(found: Sequence[dict[str, Target]]) -> list[dict[str, Target]]:
        means = {name: sum(targets[name].denominator for targets in found) / len(found) for name in found[0]}
        return [{name: replace(target, denominator=means[name]) for name,
                 target in targets.items()} for targets in found]

    if not batches:
        return []
    scores, labels = even([batch.token_targets for batch in batches]), even([batch.row_targets for batch in batches])
    return [replace(batch, token_targets=places, row_targets=rows)
            for batch, places, rows in zip(batches, scores, labels, strict=True)]


def inference_batches(model: Model, objective: TaskObjective,
                      items: Sequence[EncodedExample]) -> Iterator[tuple[list[int], Batch]]:
    """(numbers of the items, batch): longest first, so that what does not fit the memory fails at once."""
    order = sorted(range(len(items)), key=lambda number: (len(items[number].sequences), -items[number].length))
    for _, alike in groupby(order, key=lambda number: len(items[number].sequences)):
        waiting = list(alike)
        while waiting:
            first = items[waiting[0]]
            size = max(1, INFERENCE_TOKENS // (first.length * len(first.sequences)))
            chosen, waiting = waiting[:size], waiting[size:]
            yield chosen, replace(objective.collate(model, [items[number] for number in chosen]), held_out=True)
