"""The span boundary objective: guess what masked language modelling hid, not from where it stood but from the two
places around it (SpanBERT, arXiv:1907.10529). So the edges of a span learn to stand for all of it.

A span is a run of hidden tokens, as `masked_lm` left it: runs that meet are one.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stemma.corpus.draft import Draft
from stemma.corpus.randomness import Randomness
from stemma.network.boundary_head import BoundaryHead, BoundaryScorer
from stemma.network.network import Network
from stemma.network.streams import Hidden
from stemma.objectives.base import Needs, Objective
from stemma.objectives.batch import Batch, Target
from stemma.objectives.masked_lm import HEAD as VOCABULARY
from stemma.schema.encoder_tasks import SpanBoundarySettings

HEAD = "span_boundary"


class SpanBoundary(Objective):
    settings: SpanBoundarySettings

    def needs(self) -> Needs:
        return Needs(heads={HEAD: BoundaryHead(self.settings.places)})

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        """Nothing more is hidden; the places around each span must be computed to the end, though nothing is guessed
        there."""
        hidden = np.zeros(draft.ids.shape, dtype=bool)
        hidden.reshape(-1)[draft.scores[VOCABULARY].index] = True
        around = np.zeros(hidden.shape, dtype=bool)
        around[:, :-1] |= hidden[:, 1:] & ~hidden[:, :-1]
        around[:, 1:] |= hidden[:, :-1] & ~hidden[:, 1:]
        draft.read = around
        draft.score(HEAD, at=hidden, labels=draft.original)

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        target, head = batch.scores[HEAD], network.heads[HEAD]
        assert isinstance(head, BoundaryScorer)
        places = hidden["encoder"].flatten(0, 1)
        left, right, number = edges(target)
        return {self.name: head.loss(places[left], places[right], number, target.labels, target.total)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: float(-unigram[batch.scores[HEAD].labels.cpu().numpy()].mean())}


def edges(target: Target) -> tuple[Tensor, Tensor, Tensor]:
    """(N,) each: the flat place before the span of every scored one, the place behind it, and its number within it."""
    index, row = target.index, target.index // target.width
    begins = torch.ones(len(index), dtype=torch.bool, device=index.device)
    begins[1:] = (index[1:] != index[:-1] + 1) | (row[1:] != row[:-1])
    ends = torch.ones_like(begins)
    ends[:-1] = begins[1:]
    span = begins.cumsum(0) - 1
    first, last = index[begins][span], index[ends][span]
    return first - 1, last + 1, index - first
