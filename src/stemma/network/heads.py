"""What stands on top of a network: small modules that turn hidden vectors into a guess.

An objective declares its heads by a specification (plain data, comparable, so that two objectives may share one); the
network builds them. Only scored positions ever reach a head's large matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.activation import ACTIVATIONS
from stemma.network.adaptive import AdaptiveInput, AdaptiveSoftmaxHead
from stemma.network.dropout import Dropout
from stemma.network.embedding import InputEmbedding
from stemma.network.initialization import Linear, LookupEmbedding, default_initializer
from stemma.network.kinds import build_norm
from stemma.network.linear_cross_entropy import LMLossOutput, linear_cross_entropy, linear_cross_entropy_and_sample
from stemma.network.module import TensorModule
from stemma.registry import register
from stemma.schema.network import NetworkSettings
from stemma.schema.network_tables import Activation


@dataclass(frozen=True)
class LMHeadSpec:
    """Guess a token of the vocabulary, by the embedding matrix itself; `transform` is BERT's extra layer before it.
    Where the embedding is parted by frequency, its own parts are scored, with their biases."""

    transform: bool = True
    bias: bool = True

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        if isinstance(embedding.tokens, AdaptiveInput):
            return AdaptiveSoftmaxHead(embedding.tokens, settings)
        return LMHead(self, settings, embedding)


@register("head", "Pooler")
@dataclass(frozen=True)
class Pooler:
    """One vector for the whole input: the first place's, through a layer and a tanh."""

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        return FirstTokenPooler(settings)


@register("head", "ClassHead")
@dataclass(frozen=True)
class ClassHead:
    """Guess one of a few classes for the whole input, from the pooled vector."""

    classes: int
    dropout: float = 0.0
    transform: Activation | None = None  # a layer with a norm before the answer (ModernBERT)

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        transform = None if self.transform is None else HeadTransform(settings, self.transform)
        return ClassificationHead(settings, self.classes, self.dropout, transform)


@dataclass(frozen=True)
class DiscriminatorHeadSpec:
    """Say of each place whether what stands there is the original (ELECTRA, arXiv:2003.10555)."""

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        return DiscriminatorHead(settings)


class HeadSpec(Protocol):
    """Plain, comparable data that says what head to build: two objectives that ask for equal ones share it."""

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        """The head for a network of these settings."""


class ScoringHead(Protocol):
    """A head that scores: logits for a guess, or the loss of one."""

    __call__: Callable[..., Tensor]  # (..., width) -> (..., answers) logits

    def loss(self, hidden: Tensor, labels: Tensor, denominator: float, smoothing: float = 0.0) -> Tensor:
        """(N, width), (N,) -> the summed loss over `total`; `smoothing` is the share of belief that all answers get
        alike, right or wrong."""


class LMHead(TensorModule):
    def __init__(self, spec: LMHeadSpec, settings: NetworkSettings, embedding: InputEmbedding):
        super().__init__()
        width = embedding.tokens.embedding_dim
        vocabulary = embedding.tokens.num_embeddings
        self.dense = (Linear(settings.width, width, settings.bias, default_initializer(settings,
            settings.width)) if spec.transform
                      else None)
        self.norm = build_norm(settings.norm, width) if spec.transform else None
        self.activation = ACTIVATIONS[settings.activation]
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if spec.bias else None
        self.scale = settings.width**-0.5 if settings.embedding.quiet else 1.0
        self.tokens = embedding.tokens  # the embedding's own: a network states that it is stored and counted there

    @property
    def weight(self) -> Tensor:
        assert isinstance(self.tokens, LookupEmbedding)  # of one parted by frequency, its parts are scored
        return self.tokens.weight

    def transform(self, hidden: Tensor) -> Tensor:
        if self.scale != 1.0:
            hidden = hidden * self.scale
        if self.dense is None or self.norm is None:
            return hidden
        return self.norm(self.activation(self.dense(hidden)))

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., width) -> (..., vocabulary) logits."""
        return functional.linear(self.transform(hidden), self.weight, self.bias)

    def loss(self, hidden: Tensor, labels: Tensor, denominator: float, smoothing: float = 0.0) -> Tensor:
        """(N, width) of scored places, (N,) -> the summed loss over `total`."""
        return linear_cross_entropy(self.transform(hidden), self.weight, self.bias, labels, denominator, smoothing)

    def loss_and_sample(self, hidden: Tensor, labels: Tensor, denominator: float) -> LMLossOutput:
        """The loss, and what it would write at each of the places."""
        return linear_cross_entropy_and_sample(self.transform(hidden), self.weight, self.bias, labels, denominator)


class DiscriminatorHead(TensorModule):
    def __init__(self, settings: NetworkSettings):
        super().__init__()
        usual = default_initializer(settings, settings.width)
        self.dense = Linear(settings.width, settings.width, True, usual)
        self.activation = ACTIVATIONS[settings.activation]
        self.output = Linear(settings.width, 1, True, usual)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., width) -> (...): above 0 where a replacement is likelier than the original."""
        return self.output(self.activation(self.dense(hidden)))[..., 0]


class FirstTokenPooler(TensorModule):
    def __init__(self, settings: NetworkSettings):
        super().__init__()
        self.dense = Linear(settings.width, settings.width, True, default_initializer(settings, settings.width))

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, L, width) -> (B, width)"""
        return torch.tanh(self.dense(hidden[:, 0]))


class HeadTransform(TensorModule):
    """A layer, its activation and a norm: what ModernBERT has before every answer (arXiv:2412.13663)."""

    def __init__(self, settings: NetworkSettings, activation: Activation):
        super().__init__()
        self.dense = Linear(settings.width, settings.width, settings.bias,
                            default_initializer(settings, settings.width))
        self.activation = ACTIVATIONS[activation]
        self.norm = build_norm(settings.norm, settings.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))


class ClassificationHead(TensorModule):
    def __init__(self, settings: NetworkSettings, classes: int, dropout: float, transform: HeadTransform | None = None):
        super().__init__()
        self.transform = transform
        self.dropout = Dropout(dropout)
        self.output = Linear(settings.width, classes, True, default_initializer(settings, settings.width))

    def forward(self, pooled: Tensor) -> Tensor:
        return self.output(self.dropout(pooled if self.transform is None else self.transform(pooled)))

    def loss(self, pooled: Tensor, labels: Tensor, denominator: float, smoothing: float = 0.0) -> Tensor:
        scores = self(pooled).float()
        return functional.cross_entropy(scores, labels, reduction="sum", label_smoothing=smoothing) / denominator
