"""Guess the tokens of a hidden span from outside: from the places on its two sides, and how far inside each token lies
(SpanBERT's span boundary objective, arXiv:1907.10529, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.activation import ACTIVATIONS
from stemma.network.embedding import InputEmbedding
from stemma.network.initialization import Linear, LookupEmbedding, default_initializer
from stemma.network.kinds import build_norm
from stemma.network.linear_cross_entropy import linear_cross_entropy
from stemma.network.module import TensorModule
from stemma.schema.network import NetworkSettings

POSITION_WIDTH = 200  # of the vector that says how far inside a token lies, whatever the network's width (as released)


@dataclass(frozen=True)
class SpanBoundaryHeadSpec:
    """Two layers over both sides and the place, then the embedding matrix; a place beyond the last one counts as it."""

    max_span_positions: int

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        return SpanBoundaryHead(self.max_span_positions, settings, embedding)


class SpanBoundaryHead(TensorModule):
    def __init__(self, max_span_positions: int, settings: NetworkSettings, embedding: InputEmbedding):
        super().__init__()
        inner, width = settings.width, embedding.tokens.embedding_dim
        self.places = LookupEmbedding(max_span_positions, POSITION_WIDTH, default_initializer(settings))
        both = 2 * inner + POSITION_WIDTH
        self.input = Linear(both, inner, True, default_initializer(settings, both))
        self.input_norm = build_norm(settings.norm, inner)
        self.output = Linear(inner, width, True, default_initializer(settings, inner))
        self.output_norm = build_norm(settings.norm, width)
        self.activation = ACTIVATIONS[settings.activation]
        self.bias = nn.Parameter(torch.zeros(embedding.tokens.num_embeddings))
        self.tokens = embedding.tokens  # the embedding's own: a network states that it is stored and counted there

    @property
    def weight(self) -> Tensor:
        assert isinstance(self.tokens, LookupEmbedding)  # the schema refuses cutoffs beside it
        return self.tokens.weight

    def transform(self, left: Tensor, right: Tensor, position: Tensor) -> Tensor:
        """(N, width), (N, width), (N,) -> (N, width of the embedding)"""
        position = position.clamp(max=self.places.num_embeddings - 1)
        x = torch.cat([left, right, self.places(position).to(left.dtype)], 1)
        x = self.input_norm(self.activation(self.input(x)))
        return self.output_norm(self.activation(self.output(x)))

    def forward(self, left: Tensor, right: Tensor, position: Tensor) -> Tensor:
        """(N, vocabulary) logits."""
        return functional.linear(self.transform(left, right, position), self.weight, self.bias)

    def loss(self, left: Tensor, right: Tensor, position: Tensor, labels: Tensor, denominator: float) -> Tensor:
        """The summed loss over `total`."""
        return linear_cross_entropy(self.transform(left, right, position), self.weight, self.bias, labels, denominator)
