"""Batches of examples for the training loop, in a new order each epoch; of several tasks, the batches of all are
shuffled together (MT-DNN, arXiv:1901.11504, algorithm 1).

A batch is computed in slices of similar length, so that hardly anything is filling. But it has some from the shortest
to the longest: answers go with length (similar sentences are short ones, in some data sets), and a batch of like rows
would pull the network to and fro.

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

POOL = 16  # batches whose examples are sorted by length among each other: shuffled enough, and hardly any filling
SLICES, LEAST = 4, 4  # slices of a batch, and the examples that one has at least
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
        task, slices = order[self.batch]
        lesson = self.lessons[task]
        if self.model.device.type != "cpu":  # a graphics card minds many small slices more than filling
            slices = [np.concatenate(slices)]
        batch = Batch.of([lesson.learner.batch(self.model, [lesson.train[number] for number in chosen])
                          for chosen in slices])
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

    def _draw(self, epoch: int) -> list[tuple[int, list[np.ndarray]]]:
        """(task, examples slice by slice) of every batch of an epoch."""
        rng = np.random.default_rng([self.seed, epoch, 5])
        batches = [(number, batch) for number, lesson in enumerate(self.lessons)
                   for batch in batches_of(lesson.train, lesson.batch_size, rng)]
        return [batches[number] for number in rng.permutation(len(batches))]


def _known(items: Sequence[Item]) -> list[Item]:
    return [item for item in items if item.answer is not None]


def batches_of(items: Sequence[Item], size: int, rng: np.random.Generator | None) -> list[list[np.ndarray]]:
    """Numbers of the items of each batch, slice by slice: `size` of them at most, of equally many rows. Every batch has
    a slice of short ones, one of longer ones, and so on. Without `rng`, nothing is shuffled."""
    made: list[list[np.ndarray]] = []
    order = np.arange(len(items)) if rng is None else rng.permutation(len(items))
    lengths = np.array([item.length for item in items])
    rows = np.array([len(item.rows) for item in items])
    for count in np.unique(rows):
        alike = order[rows[order] == count]
        for start in range(0, len(alike), POOL * size):
            part = alike[start:start + POOL * size]
            part = part[np.argsort(lengths[part], kind="stable")]
            made += _in_slices(part, -(-len(part) // size), max(1, min(SLICES, size // LEAST)), rng)
    return made


def _in_slices(ordered: np.ndarray, batches: int, slices: int,
               rng: np.random.Generator | None) -> list[list[np.ndarray]]:
    """Examples in order of length, dealt out: each stretch of them is cut into as many slices as there are batches."""
    stretches = [np.array_split(stretch, batches) for stretch in np.array_split(ordered, slices)]
    if rng is not None:
        stretches = [[stretch[number] for number in rng.permutation(batches)] for stretch in stretches]
    return [[part for part in dealt if len(part)] for dealt in zip(*stretches, strict=True)]


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
            yield chosen, learner.batch(model, [items[number] for number in chosen])
