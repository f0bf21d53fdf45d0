"""Classes of two texts by a head that reads them apart, so it must be told where each stands (`network/san.py`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stemma.network.network import Network
from stemma.network.streams import Hidden
from stemma.objectives.batch import Batch, Target
from stemma.tasks.layout import Row
from stemma.tasks.learner import Item
from stemma.tasks.sentences import ClassLearner

PARTS = "parts"  # beside the labels of a batch's rows: where the two texts of each stand


class PairLearner(ClassLearner):
    def wanted(self, lengths: Tensor, length: int) -> Tensor | None:
        return None  # every place of both texts is read

    def targets(self, items: Sequence[Item], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        places, rows = super().targets(items, length)
        parts = torch.tensor([where(item.rows[0]) for item in items])
        return places, {**rows, PARTS: Target(torch.arange(len(items)), parts, 1.0)}

    def logits(self, network: Network, hidden: Hidden, batch: Batch) -> Tensor:
        return network.head(self.name)(hidden[self.stack], batch.labels[PARTS].labels)


def where(row: Row) -> tuple[int, ...]:
    """First place and number of places of either text. One that is nothing to the tokenizer is read at the special
    token beside it, for a mean of no places is not a number."""
    return tuple(number for first, count in row.parts
                 for number in (min(first, len(row.ids) - 1), max(count, 1)))
