"""Guess the tokens of a hidden span from outside: from the places on its two sides, and how far inside each token lies
(SpanBERT's span boundary objective, arXiv:1907.10529, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.activation import ACTIVATIONS
from stemma.network.embed import Embedding
from stemma.network.initialization import Linear, LookupEmbedding, draw_of
from stemma.network.kinds import build_norm
from stemma.network.module import TensorModule
from stemma.network.vocabulary_loss import vocabulary_loss
from stemma.schema.network import NetworkSettings

PLACE_WIDTH = 200  # of the vector that says how far inside a token lies, whatever the network's width (as released)


@dataclass(frozen=True)
class BoundaryHead:
    """Two layers over both sides and the place, then the embedding matrix; a place beyond the last one counts as it."""

    places: int

    def build(self, settings: NetworkSettings, embedding: Embedding) -> nn.Module:
        return BoundaryScorer(self.places, settings, embedding)


class BoundaryScorer(TensorModule):
    def __init__(self, places: int, settings: NetworkSettings, embedding: Embedding):
        super().__init__()
        inner, width = settings.width, embedding.tokens.embedding_dim
        self.places = LookupEmbedding(places, PLACE_WIDTH, draw_of(settings))
        both = 2 * inner + PLACE_WIDTH
        self.input = Linear(both, inner, True, draw_of(settings, both))
        self.input_norm = build_norm(settings.norm, inner)
        self.output = Linear(inner, width, True, draw_of(settings, inner))
        self.output_norm = build_norm(settings.norm, width)
        self.activation = ACTIVATIONS[settings.activation]
        self.bias = nn.Parameter(torch.zeros(embedding.tokens.num_embeddings))
        self.tokens = embedding.tokens  # the embedding's own: a network states that it is stored and counted there

    @property
    def table(self) -> Tensor:
        assert isinstance(self.tokens, LookupEmbedding)  # the schema refuses cutoffs beside it
        return self.tokens.weight

    def prepare(self, left: Tensor, right: Tensor, place: Tensor) -> Tensor:
        """(N, width), (N, width), (N,) -> (N, width of the embedding)"""
        place = place.clamp(max=self.places.num_embeddings - 1)
        x = torch.cat([left, right, self.places(place).to(left.dtype)], 1)
        x = self.input_norm(self.activation(self.input(x)))
        return self.output_norm(self.activation(self.output(x)))

    def forward(self, left: Tensor, right: Tensor, place: Tensor) -> Tensor:
        """(N, vocabulary) logits."""
        return functional.linear(self.prepare(left, right, place), self.table, self.bias)

    def loss(self, left: Tensor, right: Tensor, place: Tensor, labels: Tensor, total: float) -> Tensor:
        """The summed loss over `total`."""
        return vocabulary_loss(self.prepare(left, right, place), self.table, self.bias, labels, total)
