"""What tasks have in common that ask for one of a few answers: about a whole row, or about each of its tokens.

The head is named after the task's kind, so that a model keeps it whatever the recipe calls the task. The baseline is
the class prior of the labels that were drawn, not of those that a recipe wants: text decides what can be asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from stemma.objectives.base import Objective, Requirements

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.network.inputs_outputs import NetworkOutput
    from stemma.network.network import Network
    from stemma.objectives.batch import Batch


class RowClassification(Objective):
    """One answer a row, read off the pooled first place; a row whose label is -1 is not asked."""

    classes: int
    labels_rows = True

    def requirements(self) -> Requirements:
        from stemma.network.heads import ClassHead, Pooler
        from stemma.network.network import POOLER

        return Requirements(heads={POOLER: Pooler(), self.settings.kind: ClassHead(self.classes)})

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        target = batch.row_targets[self.name]
        pooled = network.pool(output["encoder"])[target.index]
        return {self.name: network.head(self.settings.kind).loss(pooled, target.labels, target.denominator)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: entropy(batch.row_targets[self.name].labels.cpu().numpy())}

    def mean_baseline(self, batches: Sequence[Batch], unigram: np.ndarray) -> float:
        return entropy(np.concatenate([batch.row_targets[self.name].labels.cpu().numpy() for batch in batches]))


class TokenClassification(Objective):
    """Yes or no, at places of the text."""

    def requirements(self) -> Requirements:
        from stemma.network.heads import ClassHead

        return Requirements(heads={self.settings.kind: ClassHead(2)})

    def add_targets(self, draft: Draft, labels: np.ndarray) -> None:
        """At every token of the text that stands there as it was: of a hidden one little can be said."""
        draft.add_token_targets(self.name, draft.is_text & (draft.input_ids == draft.original_ids), labels,
                                are_token_ids=False)

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        target = batch.token_targets[self.name]
        places = output["encoder"].flatten(0, 1)[target.index]  # (N, width)
        return {self.name: network.head(self.settings.kind).loss(places, target.labels, target.denominator)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: entropy(batch.token_targets[self.name].labels.cpu().numpy())}

    def mean_baseline(self, batches: Sequence[Batch], unigram: np.ndarray) -> float:
        return entropy(np.concatenate([batch.token_targets[self.name].labels.cpu().numpy() for batch in batches]))


def entropy(labels: np.ndarray) -> float:
    """What one loses who knows how often each answer occurs among these, and nothing else."""
    counts = np.bincount(labels)
    shares = counts[counts > 0] / max(1, len(labels))
    return float(-(shares * np.log(shares)).sum())
