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
from stemma.network.adaptive import AdaptiveScorer, AdaptiveTokens
from stemma.network.dropout import Dropout
from stemma.network.embed import Embedding
from stemma.network.initialization import Linear, LookupEmbedding, draw_of
from stemma.network.kinds import build_norm
from stemma.network.module import TensorModule
from stemma.network.vocabulary_loss import Guess, vocabulary_guess, vocabulary_loss
from stemma.registry import register
from stemma.schema.network import NetworkSettings
from stemma.schema.network_tables import Activation


@dataclass(frozen=True)
class TokenHead:
    """Guess a token of the vocabulary, by the embedding matrix itself; `transform` is BERT's extra layer before it.
    Where the embedding is parted by frequency, its own parts are scored, with their biases."""

    transform: bool = True
    bias: bool = True

    def build(self, settings: NetworkSettings, embedding: Embedding) -> nn.Module:
        if isinstance(embedding.tokens, AdaptiveTokens):
            return AdaptiveScorer(embedding.tokens, settings)
        return TokenScorer(self, settings, embedding)


@register("head", "Pooler")
@dataclass(frozen=True)
class Pooler:
    """One vector for the whole input: the first place's, through a layer and a tanh."""

    def build(self, settings: NetworkSettings, embedding: Embedding) -> nn.Module:
        return FirstPlacePooler(settings)


@register("head", "ClassHead")
@dataclass(frozen=True)
class ClassHead:
    """Guess one of a few classes for the whole input, from the pooled vector."""

    classes: int
    dropout: float = 0.0
    transform: Activation | None = None  # a layer with a norm before the answer (ModernBERT)

    def build(self, settings: NetworkSettings, embedding: Embedding) -> nn.Module:
        transform = None if self.transform is None else Transform(settings, self.transform)
        return Classifier(settings, self.classes, self.dropout, transform)


@dataclass(frozen=True)
class JudgeHead:
    """Say of each place whether what stands there is the original (ELECTRA, arXiv:2003.10555)."""

    def build(self, settings: NetworkSettings, embedding: Embedding) -> nn.Module:
        return Judge(settings)


class HeadSpec(Protocol):
    """Plain, comparable data that says what head to build: two objectives that ask for equal ones share it."""

    def build(self, settings: NetworkSettings, embedding: Embedding) -> nn.Module:
        """The head for a network of these settings."""


class Head(Protocol):
    """A head that scores: logits for a guess, or the loss of one."""

    __call__: Callable[..., Tensor]  # (..., width) -> (..., answers) logits

    def loss(self, hidden: Tensor, labels: Tensor, total: float, smoothing: float = 0.0) -> Tensor:
        """(N, width), (N,) -> the summed loss over `total`; `smoothing` is the share of belief that all answers get
        alike, right or wrong."""


class TokenScorer(TensorModule):
    def __init__(self, spec: TokenHead, settings: NetworkSettings, embedding: Embedding):
        super().__init__()
        width = embedding.tokens.embedding_dim
        vocabulary = embedding.tokens.num_embeddings
        self.dense = (Linear(settings.width, width, settings.bias, draw_of(settings, settings.width)) if spec.transform
                      else None)
        self.norm = build_norm(settings.norm, width) if spec.transform else None
        self.activation = ACTIVATIONS[settings.activation]
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if spec.bias else None
        self.scale = settings.width**-0.5 if settings.embedding.quiet else 1.0
        self.tokens = embedding.tokens  # the embedding's own: a network states that it is stored and counted there

    @property
    def table(self) -> Tensor:
        assert isinstance(self.tokens, LookupEmbedding)  # of one parted by frequency, its parts are scored
        return self.tokens.weight

    def prepare(self, hidden: Tensor) -> Tensor:
        if self.scale != 1.0:
            hidden = hidden * self.scale
        if self.dense is None or self.norm is None:
            return hidden
        return self.norm(self.activation(self.dense(hidden)))

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., width) -> (..., vocabulary) logits."""
        return functional.linear(self.prepare(hidden), self.table, self.bias)

    def loss(self, hidden: Tensor, labels: Tensor, total: float, smoothing: float = 0.0) -> Tensor:
        """(N, width) of scored places, (N,) -> the summed loss over `total`."""
        return vocabulary_loss(self.prepare(hidden), self.table, self.bias, labels, total, smoothing)

    def guess(self, hidden: Tensor, labels: Tensor, total: float) -> Guess:
        """The loss, and what it would write at each of the places."""
        return vocabulary_guess(self.prepare(hidden), self.table, self.bias, labels, total)


class Judge(TensorModule):
    def __init__(self, settings: NetworkSettings):
        super().__init__()
        usual = draw_of(settings, settings.width)
        self.dense = Linear(settings.width, settings.width, True, usual)
        self.activation = ACTIVATIONS[settings.activation]
        self.output = Linear(settings.width, 1, True, usual)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., width) -> (...): above 0 where a replacement is likelier than the original."""
        return self.output(self.activation(self.dense(hidden)))[..., 0]


class FirstPlacePooler(TensorModule):
    def __init__(self, settings: NetworkSettings):
        super().__init__()
        self.dense = Linear(settings.width, settings.width, True, draw_of(settings, settings.width))

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, L, width) -> (B, width)"""
        return torch.tanh(self.dense(hidden[:, 0]))


class Transform(TensorModule):
    """A layer, its activation and a norm: what ModernBERT has before every answer (arXiv:2412.13663)."""

    def __init__(self, settings: NetworkSettings, activation: Activation):
        super().__init__()
        self.dense = Linear(settings.width, settings.width, settings.bias, draw_of(settings, settings.width))
        self.activation = ACTIVATIONS[activation]
        self.norm = build_norm(settings.norm, settings.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))


class Classifier(TensorModule):
    def __init__(self, settings: NetworkSettings, classes: int, dropout: float, transform: Transform | None = None):
        super().__init__()
        self.transform = transform
        self.dropout = Dropout(dropout)
        self.output = Linear(settings.width, classes, True, draw_of(settings, settings.width))

    def forward(self, pooled: Tensor) -> Tensor:
        return self.output(self.dropout(pooled if self.transform is None else self.transform(pooled)))

    def loss(self, pooled: Tensor, labels: Tensor, total: float, smoothing: float = 0.0) -> Tensor:
        scores = self(pooled).float()
        return functional.cross_entropy(scores, labels, reduction="sum", label_smoothing=smoothing) / total
