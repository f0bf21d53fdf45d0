"""What tasks have in common that ask for one of a few answers: about a whole row, or about each of its tokens.

The head is named after the task's kind, so that a model keeps it whatever the recipe calls the task.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from stemma.corpus.draft import Draft
from stemma.network.heads import ClassHead, Pooler
from stemma.network.network import POOLER, Network
from stemma.network.streams import Hidden
from stemma.objectives.base import Needs, Objective
from stemma.objectives.batch import Batch


class RowClassifier(Objective):
    """One answer a row, read off the pooled first place; a row whose label is -1 is not asked."""

    classes: int
    shares: np.ndarray | None = None  # how often each answer is to be expected, where that is known

    def needs(self) -> Needs:
        return Needs(heads={POOLER: Pooler(), self.settings.kind: ClassHead(self.classes)})

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        target = batch.labels[self.name]
        pooled = network.pooled(hidden["encoder"])[target.index]
        return {self.name: network.head(self.settings.kind).loss(pooled, target.labels, target.total)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        target = batch.labels[self.name]
        labels = target.labels.cpu().numpy()
        if self.shares is None:
            return {self.name: entropy(labels)}
        expected = np.clip(self.shares, 1e-6, 1 - 1e-6)  # an answer may be forced on a row even where none is wanted
        return {self.name: float(-np.log(expected[labels]).sum() / target.total)}


class PlaceClassifier(Objective):
    """Yes or no, at places of the text."""

    def needs(self) -> Needs:
        return Needs(heads={self.settings.kind: ClassHead(2)})

    def ask(self, draft: Draft, labels: np.ndarray) -> None:
        """At every token of the text that stands there as it was: of a hidden one little can be said."""
        draft.score(self.name, draft.text & (draft.ids == draft.original), labels, tokens=False)

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        target = batch.scores[self.name]
        places = hidden["encoder"].flatten(0, 1)[target.index]  # (N, width)
        return {self.name: network.head(self.settings.kind).loss(places, target.labels, target.total)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: entropy(batch.scores[self.name].labels.cpu().numpy())}


def entropy(labels: np.ndarray) -> float:
    """What one loses who knows how often each answer occurs among these, and nothing else."""
    counts = np.bincount(labels)
    shares = counts[counts > 0] / max(1, len(labels))
    return float(-(shares * np.log(shares)).sum())
