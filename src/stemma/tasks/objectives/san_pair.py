"""Classes of two texts by a head that reads them apart, so it must be told where each stands
(`network/san_head.py`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stemma.network.inputs_outputs import NetworkOutput
from stemma.network.network import Network
from stemma.objectives.batch import Batch, Target
from stemma.tasks.objectives.base import EncodedExample
from stemma.tasks.objectives.input_encoder import EncodedSequence
from stemma.tasks.objectives.sequence import ClassificationObjective

TEXT_SPANS = "parts"  # beside the labels of a batch's rows: where the two texts of each stand


class SanPairObjective(ClassificationObjective):
    def output_positions(self, lengths: Tensor, length: int) -> Tensor | None:
        return None  # every place of both texts is read

    def targets(self, items: Sequence[EncodedExample], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        places, rows = super().targets(items, length)
        parts = torch.tensor([text_spans(item.sequences[0]) for item in items])
        return places, {**rows, TEXT_SPANS: Target(torch.arange(len(items)), parts, 1.0)}

    def logits(self, network: Network, output: NetworkOutput, batch: Batch) -> Tensor:
        return network.head(self.name)(output[self.stack], batch.row_targets[TEXT_SPANS].labels)


def text_spans(row: EncodedSequence) -> tuple[int, ...]:
    """First place and number of places of either text. One that is nothing to the tokenizer is read at the special
    token beside it, for a mean of no places is not a number."""
    return tuple(number for first, count in row.text_spans
                 for number in (min(first, len(row.input_ids) - 1), max(count, 1)))
