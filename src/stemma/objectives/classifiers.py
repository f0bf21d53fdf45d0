"""What tasks have in common that ask for one of a few answers: about a whole row, or about each of its tokens.

The head is named after the task's kind, so that a model keeps it whatever the recipe calls the task. The baseline is
the class prior of the labels that were drawn, not of those that a recipe wants: text decides what can be asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from stemma.objectives.base import Needs, Objective

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.network.network import Network
    from stemma.network.streams import Hidden
    from stemma.objectives.batch import Batch


class RowClassifier(Objective):
    """One answer a row, read off the pooled first place; a row whose label is -1 is not asked."""

    classes: int
    judges_rows = True

    def needs(self) -> Needs:
        from stemma.network.heads import ClassHead, Pooler
        from stemma.network.network import POOLER

        return Needs(heads={POOLER: Pooler(), self.settings.kind: ClassHead(self.classes)})

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        target = batch.labels[self.name]
        pooled = network.pooled(hidden["encoder"])[target.index]
        return {self.name: network.head(self.settings.kind).loss(pooled, target.labels, target.total)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: entropy(batch.labels[self.name].labels.cpu().numpy())}

    def mean_baseline(self, batches: Sequence[Batch], unigram: np.ndarray) -> float:
        return entropy(np.concatenate([batch.labels[self.name].labels.cpu().numpy() for batch in batches]))


class PlaceClassifier(Objective):
    """Yes or no, at places of the text."""

    def needs(self) -> Needs:
        from stemma.network.heads import ClassHead

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

    def mean_baseline(self, batches: Sequence[Batch], unigram: np.ndarray) -> float:
        return entropy(np.concatenate([batch.scores[self.name].labels.cpu().numpy() for batch in batches]))


def entropy(labels: np.ndarray) -> float:
    """What one loses who knows how often each answer occurs among these, and nothing else."""
    counts = np.bincount(labels)
    shares = counts[counts > 0] / max(1, len(labels))
    return float(-(shares * np.log(shares)).sum())
