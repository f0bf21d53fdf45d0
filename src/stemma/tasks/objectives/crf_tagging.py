"""Token classification with a CRF: the tags of a sentence are predicted as one sequence (arXiv:1508.01991).

The head of the task gives the emission scores. A second head, `NAME_crf`, has the transition scores, so a CRF stands
on top of any model and any head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from stemma.errors import UserError
from stemma.network.crf import TagTransitions, best_sequences, log_normalizer, marginals, sequence_score
from stemma.network.heads import HeadSpec
from stemma.network.inputs_outputs import NetworkOutput
from stemma.network.network import Network
from stemma.objectives.batch import Batch, Target
from stemma.tasks.objectives.base import EncodedExample
from stemma.tasks.objectives.token_classification import TokenClassificationObjective

ROWS = 256  # sequences that are decoded together


def crf_head_name(task: str) -> str:
    return f"{task}_crf"


def with_crf(heads: Mapping[str, HeadSpec], name: str, classes: int, weighted: bool) -> dict[str, HeadSpec]:
    """The heads of a task, and its transition scores."""
    if weighted:
        raise UserError("--class-weights weights the loss of each word, and a CRF has one loss for a whole sentence; "
                        "leave it out, or set finetuning.crf=false.")
    return {**heads, crf_head_name(name): TagTransitions(classes)}


class CRFTaggingObjective(TokenClassificationObjective):
    """The loss is the negative log-likelihood of each sentence, divided by the number of words. The outputs of an item
    are the transition scores, then the emission scores: an ensemble averages both."""

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        target = batch.token_targets[self.name]
        emissions = self.logits(network, output, batch, target.index).float()
        if not len(target.index):
            return {self.name: emissions.sum()}
        transitions = network.head(crf_head_name(self.name))().float()
        padded, mask, labels = _by_row(emissions, target)
        losses = log_normalizer(padded, mask, transitions) - sequence_score(padded, mask, transitions, labels)
        return {self.name: losses.sum() / target.denominator}

    def outputs(self, network: Network, output: NetworkOutput, batch: Batch) -> list[np.ndarray]:
        transitions = network.head(crf_head_name(self.name))().float().cpu().numpy()
        return [np.concatenate([transitions, emissions]) for emissions in super().outputs(network, output, batch)]

    def decode(self, items: Sequence[EncodedExample], outputs: Sequence[np.ndarray]) -> list[tuple[np.ndarray, ...]]:
        decoded: list[tuple[np.ndarray, ...]] = []
        for start in range(0, len(items), ROWS):
            decoded += self._decode_rows(items[start:start + ROWS], outputs[start:start + ROWS])
        return decoded

    def _decode_rows(self, items: Sequence[EncodedExample],
                     outputs: Sequence[np.ndarray]) -> list[tuple[np.ndarray, ...]]:
        tags = len(self.labels)
        counts = [len(item.decode_info[0]) for item in items]
        emissions = torch.zeros(len(items), max(1, *counts), tags, dtype=torch.float64)
        for row, (item, output) in enumerate(zip(items, outputs, strict=True)):
            emissions[row, :counts[row]] = torch.from_numpy(output[tags + 2:][item.decode_info[0]])
        transitions = torch.from_numpy(np.stack([output[:tags + 2] for output in outputs])).double()
        mask = torch.arange(emissions.shape[1]) < torch.tensor(counts)[:, None]
        best = best_sequences(emissions, mask, transitions)
        scores = marginals(emissions, mask, transitions).gather(2, best[:, :, None])[..., 0]
        return [(best[row, :count].numpy(), scores[row, :count].numpy()) for row, count in enumerate(counts)]


def _by_row(emissions: Tensor, target: Target) -> tuple[Tensor, Tensor, Tensor]:
    """(N, tags) emission scores of words in ascending order -> (B, W, tags) with padding, (B, W) mask, (B, W) tags.
    Rows without a target are left out."""
    _, rows, counts = torch.unique_consecutive(target.index // target.row_stride, return_inverse=True,
                                               return_counts=True)
    words = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    shape = (len(counts), int(counts.max()))
    padded = emissions.new_zeros(*shape, emissions.shape[1]).index_put((rows, words), emissions)
    mask = torch.zeros(shape, dtype=torch.bool, device=rows.device)
    mask[rows, words] = True
    labels = torch.zeros(shape, dtype=torch.long, device=rows.device)
    labels[rows, words] = target.labels
    return padded, mask, labels
