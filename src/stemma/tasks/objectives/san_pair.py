"""Pair classification with the SAN head, which reads the two texts separately (`network/san_head.py`)."""

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

TEXT_SPANS = "parts"  # row target that holds the spans of the two texts


class SanPairObjective(ClassificationObjective):
    """Passes the spans of the two texts to the head."""

    def output_positions(self, lengths: Tensor, length: int) -> Tensor | None:
        return None  # the head reads every position of both texts

    def targets(self, items: Sequence[EncodedExample], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        token_targets, row_targets = super().targets(items, length)
        spans = torch.tensor([text_spans(item.sequences[0]) for item in items])
        return token_targets, {**row_targets, TEXT_SPANS: Target(torch.arange(len(items)), spans, 1.0)}

    def logits(self, network: Network, output: NetworkOutput, batch: Batch) -> Tensor:
        return network.head(self.name)(output[self.stack], batch.row_targets[TEXT_SPANS].labels)


def text_spans(sequence: EncodedSequence) -> tuple[int, ...]:
    """First position and length of both texts. A text without tokens uses the special token next to it, because a mean
    over no positions is NaN."""
    return tuple(value for first, count in sequence.text_spans
                 for value in (min(first, len(sequence.input_ids) - 1), max(count, 1)))
