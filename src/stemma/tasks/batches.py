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

from stemma.exchange.model import Model
from stemma.objectives.batch import Batch, Target
from stemma.tasks.learner import Item, Learner
from stemma.training.batches import Prepared

READING = 8192  # places at once where nothing is learnt


@dataclass(frozen=True)
class Lesson:
    """A task, and its examples in rows."""

    learner: Learner
    train: list[Item]
    dev: list[Item]
    batch_size: int  # examples of a step


class Lessons:
    """The loop's source of batches."""

    def __init__(self, model: Model, lessons: Sequence[Lesson], seed: int, longest: int):
        self.model, self.lessons, self.seed, self.longest = model, list(lessons), seed, longest
        self.objectives = [lesson.learner for lesson in lessons]
        self.epoch = self.batch = 0
        self._order = lru_cache(maxsize=2)(self._draw)

    def steps_in_epoch(self) -> int:
        return sum(len(batches_of(lesson.train, lesson.batch_size, None)) for lesson in self.lessons)

    def take(self, step: int, length: int, used: float) -> Prepared:
        order = self._order(self.epoch)
        task, chosen = order[self.batch]
        lesson = self.lessons[task]
        batch = lesson.learner.batch(self.model, [lesson.train[number] for number in chosen])
        self.epoch, self.batch = (self.epoch, self.batch + 1) if self.batch + 1 < len(order) else (self.epoch + 1, 0)
        return Prepared((lesson.learner,), batch, {"examples": [self.epoch, self.batch]}, "examples")

    def restore(self, positions: dict[str, list[int]]) -> None:
        self.epoch, self.batch = positions.get("examples", [0, 0])

    def length_at(self, used: float) -> int:
        return self.longest

    def validation_batches(self, length: int) -> list[tuple[tuple[Learner, ...], Batch]]:
        return [((lesson.learner,), batch) for lesson in self.lessons for batch in
                evened([batch for _, batch in reading_batches(self.model, lesson.learner, _known(lesson.dev))])]

    def unigram(self) -> np.ndarray:
        return np.zeros(0)  # learners know their answers' frequencies themselves

    def close(self) -> None:
        pass

    def _draw(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        """(task, numbers of the examples) of every batch of an epoch."""
        rng = np.random.default_rng([self.seed, epoch, 5])
        batches = [(number, batch) for number, lesson in enumerate(self.lessons)
                   for batch in batches_of(lesson.train, lesson.batch_size, rng)]
        return [batches[number] for number in rng.permutation(len(batches))]


def _known(items: Sequence[Item]) -> list[Item]:
    return [item for item in items if item.answer is not None]


def batches_of(items: Sequence[Item], size: int, rng: np.random.Generator | None) -> list[np.ndarray]:
    """Numbers of the items of each batch: `size` of them at most, of equally many rows and any length. Without `rng`,
    nothing is shuffled."""
    made: list[np.ndarray] = []
    order = np.arange(len(items)) if rng is None else rng.permutation(len(items))
    rows = np.array([len(item.rows) for item in items])
    for count in np.unique(rows):
        alike = order[rows[order] == count]
        made += np.array_split(alike, -(-len(alike) // size))
    return made


def evened(batches: Sequence[Batch]) -> list[Batch]:
    """The same batches with the mean of their totals, so that the mean of their losses is that over all examples: there
    are fewer long ones in a batch than short ones."""
    def even(found: Sequence[dict[str, Target]]) -> list[dict[str, Target]]:
        means = {name: sum(targets[name].total for targets in found) / len(found) for name in found[0]}
        return [{name: replace(target, total=means[name]) for name, target in targets.items()} for targets in found]

    if not batches:
        return []
    scores, labels = even([batch.scores for batch in batches]), even([batch.labels for batch in batches])
    return [replace(batch, scores=places, labels=rows)
            for batch, places, rows in zip(batches, scores, labels, strict=True)]


def reading_batches(model: Model, learner: Learner, items: Sequence[Item]) -> Iterator[tuple[list[int], Batch]]:
    """(numbers of the items, batch): longest first, so that what does not fit the memory fails at once."""
    order = sorted(range(len(items)), key=lambda number: (len(items[number].rows), -items[number].length))
    for _, alike in groupby(order, key=lambda number: len(items[number].rows)):
        waiting = list(alike)
        while waiting:
            first = items[waiting[0]]
            size = max(1, READING // (first.length * len(first.rows)))
            chosen, waiting = waiting[:size], waiting[size:]
            yield chosen, replace(learner.batch(model, [items[number] for number in chosen]), held_out=True)
