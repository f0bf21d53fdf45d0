"""Head of SpanBERT's span boundary objective: predicts the tokens of a masked span from the hidden states at its two
boundaries and the position in the span (arXiv:1907.10529, section 3.2)."""

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

POSITION_WIDTH = 200  # size of the position embeddings in the released code, for any network width


@dataclass(frozen=True)
class SpanBoundaryHeadSpec:
    """Two dense layers over boundaries and position, then the token embedding. Positions are clamped."""

    max_span_positions: int

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        return SpanBoundaryHead(self.max_span_positions, settings, embedding)


class SpanBoundaryHead(TensorModule):
    """SpanBERT's span boundary head."""

    def __init__(self, max_span_positions: int, settings: NetworkSettings, embedding: InputEmbedding):
        super().__init__()
        inner, width = settings.width, embedding.tokens.embedding_dim
        self.places = LookupEmbedding(max_span_positions, POSITION_WIDTH, default_initializer(settings))
        input_width = 2 * inner + POSITION_WIDTH
        self.input = Linear(input_width, inner, True, default_initializer(settings, input_width))
        self.input_norm = build_norm(settings.norm, inner)
        self.output = Linear(inner, width, True, default_initializer(settings, inner))
        self.output_norm = build_norm(settings.norm, width)
        self.activation = ACTIVATIONS[settings.activation]
        self.bias = nn.Parameter(torch.zeros(embedding.tokens.num_embeddings))
        self.tokens = embedding.tokens  # shared: the network stores and counts it as part of the embedding

    @property
    def weight(self) -> Tensor:
        assert isinstance(self.tokens, LookupEmbedding)  # the schema rejects cutoffs with this head
        return self.tokens.weight

    def transform(self, left: Tensor, right: Tensor, position: Tensor) -> Tensor:
        """(N, width), (N, width), (N,) -> (N, embedding size)"""
        position = position.clamp(max=self.places.num_embeddings - 1)
        x = torch.cat([left, right, self.places(position).to(left.dtype)], 1)
        x = self.input_norm(self.activation(self.input(x)))
        return self.output_norm(self.activation(self.output(x)))

    def forward(self, left: Tensor, right: Tensor, position: Tensor) -> Tensor:
        """(N, vocabulary) logits."""
        return functional.linear(self.transform(left, right, position), self.weight, self.bias)

    def loss(self, left: Tensor, right: Tensor, position: Tensor, labels: Tensor, denominator: float) -> Tensor:
        """The sum of the losses divided by `denominator`."""
        return linear_cross_entropy(self.transform(left, right, position), self.weight, self.bias, labels, denominator)
