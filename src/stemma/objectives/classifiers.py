"""Base classes of objectives that classify rows or tokens.

The head is named after the kind of the objective, so that a model keeps it whatever the recipe calls the objective. The
baseline is the class prior of the sampled labels, since it depends on the text how often each label occurs.
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
    """Row classification from the pooled first position; a row with label -1 has no loss."""

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
    """Binary classification of tokens."""

    def requirements(self) -> Requirements:
        from stemma.network.heads import ClassHead

        return Requirements(heads={self.settings.kind: ClassHead(2)})

    def add_targets(self, draft: Draft, labels: np.ndarray) -> None:
        """Score every text token that is not masked or replaced."""
        draft.add_token_targets(self.name, draft.is_text & (draft.input_ids == draft.original_ids), labels,
                                are_token_ids=False)

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        target = batch.token_targets[self.name]
        hidden = output["encoder"].flatten(0, 1)[target.index]  # (N, width)
        return {self.name: network.head(self.settings.kind).loss(hidden, target.labels, target.denominator)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: entropy(batch.token_targets[self.name].labels.cpu().numpy())}

    def mean_baseline(self, batches: Sequence[Batch], unigram: np.ndarray) -> float:
        return entropy(np.concatenate([batch.token_targets[self.name].labels.cpu().numpy() for batch in batches]))


def entropy(labels: np.ndarray) -> float:
    """Entropy of the label distribution: the loss of predicting the class prior."""
    counts = np.bincount(labels)
    priors = counts[counts > 0] / max(1, len(labels))
    return float(-(priors * np.log(priors)).sum())
