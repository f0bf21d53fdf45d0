"""The data loader of fine-tuning: shuffles each epoch, and mixes the batches of several tasks (MT-DNN,
arXiv:1901.11504, algorithm 1).

The order of an epoch depends only on the seed and the epoch, so (epoch, batch) is enough to resume.
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

INFERENCE_TOKENS = 8192  # tokens per batch at inference


@dataclass(frozen=True)
class TaskDataset:
    """The objective and the encoded examples of a task."""

    objective: TaskObjective
    train: list[EncodedExample]
    dev: list[EncodedExample]
    batch_size: int  # examples per step


class FinetuneLoader:
    """Supplies the training loop with batches."""

    def __init__(self, model: Model, datasets: Sequence[TaskDataset], seed: int, max_length: int):
        self.model, self.datasets, self.seed, self.max_length = model, list(datasets), seed, max_length
        self.objectives = [dataset.objective for dataset in datasets]
        self.epoch = self.batch = 0
        self._batch_order = lru_cache(maxsize=2)(self._shuffled_batches)

    def steps_in_epoch(self) -> int:
        return sum(len(batch_indices(dataset.train, dataset.batch_size, None)) for dataset in self.datasets)

    def get_batch(self, step: int, length: int, progress: float) -> PreparedBatch:
        order = self._batch_order(self.epoch)
        dataset_index, indices = order[self.batch]
        dataset = self.datasets[dataset_index]
        batch = dataset.objective.collate(self.model, [dataset.train[index] for index in indices])
        self.epoch, self.batch = (self.epoch, self.batch + 1) if self.batch + 1 < len(order) else (self.epoch + 1, 0)
        return PreparedBatch((dataset.objective,), batch, {"examples": [self.epoch, self.batch]}, "examples")

    def restore(self, cursors: dict[str, list[int]]) -> None:
        self.epoch, self.batch = cursors.get("examples", [0, 0])

    def sequence_length_at(self, progress: float) -> int:
        return self.max_length

    def validation_batches(self, length: int) -> list[tuple[tuple[TaskObjective, ...], Batch]]:
        return [((dataset.objective,), batch) for dataset in self.datasets for batch in
                equalize_totals([batch for _, batch in inference_batches(self.model, dataset.objective,
                                                                         _with_target(dataset.dev))])]

    def unigram(self) -> np.ndarray:
        return np.zeros(0)  # task objectives have their own class priors

    def close(self) -> None:
        pass

    def _shuffled_batches(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        """(dataset index, example indices) of every batch of an epoch."""
        rng = np.random.default_rng([self.seed, epoch, 5])
        batches = [(index, batch) for index, dataset in enumerate(self.datasets)
                   for batch in batch_indices(dataset.train, dataset.batch_size, rng)]
        return [batches[index] for index in rng.permutation(len(batches))]


def _with_target(items: Sequence[EncodedExample]) -> list[EncodedExample]:
    return [item for item in items if item.target is not None]


def batch_indices(items: Sequence[EncodedExample], size: int, rng: np.random.Generator | None) -> list[np.ndarray]:
    """Item indices of each batch: at most `size` items with the same number of sequences. Without `rng`, the order is
    kept."""
    batches: list[np.ndarray] = []
    order = np.arange(len(items)) if rng is None else rng.permutation(len(items))
    rows = np.array([len(item.sequences) for item in items])
    for count in np.unique(rows):
        alike = order[rows[order] == count]
        batches += np.array_split(alike, -(-len(alike) // size))
    return batches


def equalize_totals(batches: Sequence[Batch]) -> list[Batch]:
    """Give all batches the mean of their denominators, so that the mean of the batch losses is the mean over examples:
    batches of long examples are smaller."""
    def equalize(all_targets: Sequence[dict[str, Target]]) -> list[dict[str, Target]]:
        means = {name: sum(targets[name].denominator for targets in all_targets) / len(all_targets)
                 for name in all_targets[0]}
        return [{name: replace(target, denominator=means[name]) for name, target in targets.items()}
                for targets in all_targets]

    if not batches:
        return []
    token_targets = equalize([batch.token_targets for batch in batches])
    row_targets = equalize([batch.row_targets for batch in batches])
    return [replace(batch, token_targets=tokens, row_targets=rows)
            for batch, tokens, rows in zip(batches, token_targets, row_targets, strict=True)]


def inference_batches(model: Model, objective: TaskObjective,
                      items: Sequence[EncodedExample]) -> Iterator[tuple[list[int], Batch]]:
    """(item indices, batch), longest first, so that running out of memory shows at once."""
    order = sorted(range(len(items)), key=lambda index: (len(items[index].sequences), -items[index].length))
    for _, alike in groupby(order, key=lambda index: len(items[index].sequences)):
        waiting = list(alike)
        while waiting:
            first = items[waiting[0]]
            size = max(1, INFERENCE_TOKENS // (first.length * len(first.sequences)))
            indices, waiting = waiting[:size], waiting[size:]
            yield indices, replace(objective.collate(model, [items[index] for index in indices]), held_out=True)
