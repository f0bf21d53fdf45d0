"""A tag for each word, said by its first piece (arXiv:1810.04805, section 5.3); the other pieces are not asked.

A sentence that is longer than a row is read in rows that overlap by a quarter, and each word is asked in one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from stemma.network.features import FeatureHead
from stemma.network.heads import HeadSpec
from stemma.network.network import Network
from stemma.network.streams import Hidden
from stemma.objectives.batch import Batch, Target
from stemma.tasks.data.examples import Example, TaggedExample
from stemma.tasks.layout import RowLayout
from stemma.tasks.learner import Item, Learner
from stemma.tasks.sentences import softmax
from stemma.tasks.windows import owners, windows


class TagLearner(Learner):
    """`labels` are the tags in order. An item's `extra` is (places, words): which places of its row are asked, and
    which word each speaks for; its answer is their tags."""

    def __init__(self, name: str, layout: RowLayout, specs: dict[str, HeadSpec], labels: Sequence[str],
                 counts: Sequence[int], balance: Sequence[float] | None = None, weight: float = 1.0):
        super().__init__(name, layout, weight)
        self._specs, self.labels = specs, list(labels)
        self._number = {label: number for number, label in enumerate(labels)}
        self._prior = np.log((np.array(counts) + 1) / (sum(counts) + len(counts)))
        self._balance = None if balance is None else torch.tensor(balance)

    def heads(self) -> dict[str, HeadSpec]:
        return self._specs

    def items(self, examples: Sequence[Example]) -> list[Item]:
        told = [example for example in examples if isinstance(example, TaggedExample)]
        made = []
        for number, (example, (ids, offsets)) in enumerate(
                zip(told, self.layout.placed([" ".join(example.words) for example in told]), strict=True)):
            first = first_pieces(example.words, offsets)
            tags = None if example.tags is None else np.array([self._number[tag] for tag in example.tags])
            room = self.layout.room(1)
            cut = windows(len(ids), room, room - room // 4)
            spoken = np.flatnonzero(first >= 0)  # a word of nothing but control characters has no piece
            owner = owners(len(ids), cut)[first[spoken]]  # ascending, so that the words of a window stand together
            shares = np.split(spoken, np.searchsorted(owner, np.arange(1, len(cut))))
            for words, (start, stop) in zip(shares, cut, strict=True):
                row = self.layout.row([ids[start:stop].tolist()])
                places = first[words] - start + row.parts[0][0]
                made.append(Item((row,), None if tags is None else tags[words], number, (places, words)))
        return made

    def targets(self, items: Sequence[Item], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        places = [number * length + item.extra[0] for number, item in enumerate(items) if item.answer is not None]
        tags = [item.answer for item in items if item.answer is not None]
        index = torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *places]))
        labels = torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *tags]))
        total = float(len(index)) if self._balance is None else float(self._balance[labels].sum())
        return {self.name: Target(index, labels, total or 1.0, length)}, {}

    def wanted(self, lengths: Tensor, length: int) -> Tensor | None:
        return None

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        target = batch.scores[self.name]
        logits = self.logits(network, hidden, batch, target.index)
        weight = None if self._balance is None else self._balance.to(logits)
        return {self.name: functional.cross_entropy(logits, target.labels, weight, reduction="sum") / target.total}

    def logits(self, network: Network, hidden: Hidden, batch: Batch, places: Tensor) -> Tensor:
        """(N, tags) of these flat places."""
        head = network.head(self.name)
        if isinstance(self._specs[self.name], FeatureHead):
            return head(hidden.all_layers(self.stack), batch.lengths).flatten(0, 1)[places]
        return head(hidden[self.stack].flatten(0, 1)[places]).float()

    def answers(self, network: Network, hidden: Hidden, batch: Batch) -> list[np.ndarray]:
        rows, length = hidden[self.stack].shape[:2]
        every = torch.arange(rows * length, device=hidden[self.stack].device)
        return list(self.logits(network, hidden, batch, every).view(rows, length, -1).cpu().numpy())  # (L, tags) each

    def decide(self, items: Sequence[Item], answers: Sequence[np.ndarray], examples: Sequence[Example]) -> list[Any]:
        silent = self._number.get("O", int(self._prior.argmax()))  # what is said of a word that has no piece
        tags = [np.full(len(example.words), silent) for example in examples if isinstance(example, TaggedExample)]
        sure = [np.zeros(len(one)) for one in tags]
        for item, scores in zip(items, answers, strict=True):
            places, words = item.extra
            chances = softmax(scores[places])
            tags[item.number][words] = chances.argmax(-1)
            sure[item.number][words] = chances.max(-1, initial=0)
        return [{"tags": [self.labels[tag] for tag in one], "scores": chance.tolist()}
                for one, chance in zip(tags, sure, strict=True)]

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        target = batch.scores[self.name]
        labels = target.labels.cpu().numpy()
        weight = 1.0 if self._balance is None else self._balance.numpy()[labels]
        return {self.name: float(-(self._prior[labels] * weight).sum()) / target.total}


def first_pieces(words: Sequence[str], offsets: np.ndarray) -> np.ndarray:
    """(words,) the first token of each word in the words joined by blanks; -1 where none of its characters has one. A
    token may begin with the blank before its word, so what counts is the first that ends inside."""
    lengths = np.array([len(word) for word in words], np.int64)
    begins = np.cumsum(lengths + 1) - lengths - 1
    token = np.searchsorted(offsets[:, 1], begins, side="right")
    inside = token < len(offsets)
    starts = offsets[np.minimum(token, len(offsets) - 1), 0] if len(offsets) else begins
    return np.where(inside & (starts < begins + lengths), token, -1)
