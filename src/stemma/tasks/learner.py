"""What a task asks of a network: a learner lays examples out, names the heads it needs, scores them and reads answers.

To the training loop a learner is an objective like any other. Rows of one example (the options of a question) stand
together in a batch, and only the places that a head reads are computed to the end. No batch goes on where the one
before ended, so that nothing of it is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stemma.corpus.sides import ENCODER
from stemma.exchange.model import Model
from stemma.network.heads import HeadSpec
from stemma.network.network import Network
from stemma.network.streams import Hidden
from stemma.objectives.batch import Batch, Target
from stemma.tasks.data.examples import Example
from stemma.tasks.layout import Row, RowLayout


@dataclass(frozen=True, slots=True)
class Item:
    """An example as the network meets it."""

    rows: tuple[Row, ...]  # one; several where they compete or belong together
    answer: Any  # what is to be learnt, in the learner's own terms; None: unknown
    number: int  # of the example it belongs to
    extra: Any = None  # what reading its answer takes: where its tokens stand in the text

    @property
    def length(self) -> int:
        return max(len(row.ids) for row in self.rows)


class Learner(ABC):
    """One task. Its head's weights stand in the network under its name."""

    guesses_tokens = False
    stack = ENCODER  # whose output its head reads

    def __init__(self, name: str, layout: RowLayout, weight: float = 1.0):
        self.name, self.layout, self.weight = name, layout, weight

    @abstractmethod
    def heads(self) -> dict[str, HeadSpec]:
        """What the network must have besides its body."""

    @abstractmethod
    def items(self, examples: Sequence[Example]) -> list[Item]:
        """The examples in rows; one that does not fit a row may give several items of one number."""

    def lessons(self, examples: Sequence[Example]) -> list[Item]:
        """The items to learn from, where they are not those to answer."""
        return self.items(examples)

    @abstractmethod
    def targets(self, items: Sequence[Item], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        """What is scored in a batch whose rows are `length` places long: places by name, and rows by name."""

    @abstractmethod
    def wanted(self, lengths: Tensor, length: int) -> Tensor | None:
        """The flat places that the head reads; None: all of them."""

    @abstractmethod
    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        """The loss by the learner's name, divided by the whole step's total."""

    @abstractmethod
    def answers(self, network: Network, hidden: Hidden, batch: Batch) -> list[np.ndarray]:
        """For each item of a batch, the numbers that `decide` needs: logits, as a rule."""

    @abstractmethod
    def decide(self, items: Sequence[Item], answers: Sequence[np.ndarray], examples: Sequence[Example]) -> list[Any]:
        """A prediction for each example: a dictionary with at least what the user is told."""

    @abstractmethod
    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        """What one who knows only how often each answer occurs would lose."""

    def mean_baseline(self, batches: Sequence[Batch], unigram: np.ndarray) -> float:
        return float(np.mean([self.baseline(batch, unigram)[self.name] for batch in batches]))

    def batch(self, model: Model, items: Sequence[Item]) -> Batch:
        rows = [row for item in items for row in item.rows]
        lengths = torch.tensor([len(row.ids) for row in rows])
        longest = int(lengths.max())
        ids, segments = torch.zeros((2, len(rows), longest), dtype=torch.int64)
        for number, row in enumerate(rows):
            ids[number, : len(row.ids)] = torch.from_numpy(row.ids)
            segments[number, : len(row.ids)] = torch.from_numpy(row.segments)
        used = torch.arange(longest) < lengths[:, None]
        network = model.recipe.settings.network
        parted = network.embedding.segments > 1 or network.attention.segments
        streams = model.answering_streams(ids, used, segments if parted else None, self.stack)
        streams[ENCODER] = replace(streams[ENCODER], keep=0, skips_filling=True)
        streams[self.stack] = replace(streams[self.stack], wanted=self.wanted(lengths, longest))
        return Batch(streams, *self.targets(items, longest), int(lengths.sum()), len(rows), lengths=lengths,
                     together=len(items[0].rows))
