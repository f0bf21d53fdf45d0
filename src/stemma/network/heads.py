"""Pre-training heads: language modeling, discriminator, pooler and classifier.

An objective declares its heads by specifications; the network builds them. Specifications are plain data that compare
equal, so that two objectives can share a head. Only target positions reach the large output matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.activation import ACTIVATIONS
from stemma.network.adaptive import AdaptiveInput, AdaptiveSoftmaxHead
from stemma.network.dropout import Dropout
from stemma.network.embedding import InputEmbedding, NoTokens
from stemma.network.initialization import Initializer, Linear, LookupEmbedding, default_initializer
from stemma.network.kinds import build_norm
from stemma.network.linear_cross_entropy import (
    LMLossOutput,
    linear_cross_entropy,
    linear_cross_entropy_and_correct,
    linear_cross_entropy_and_sample,
)
from stemma.network.module import TensorModule
from stemma.network.ngram_tables import CountHead, CountingTable
from stemma.network.sampled_softmax import sample_tokens, sampled_cross_entropy
from stemma.registry import register
from stemma.schema.network import NetworkSettings
from stemma.schema.network_tables import Activation, HeadSettings


@dataclass(frozen=True)
class LMHeadSpec:
    """Language-modeling head, tied to the token embedding (`network.embedding.tied`). `transform`: BERT's dense layer
    and norm before it. With adaptive embeddings it is an adaptive softmax."""

    transform: bool = True
    bias: bool = True
    one_direction: bool = False  # it reads half of the network's width: one direction of a body that has two

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        if isinstance(embedding.tokens, CountingTable):
            return CountHead(embedding.tokens)
        if isinstance(embedding.tokens, AdaptiveInput):
            return AdaptiveSoftmaxHead(embedding.tokens, settings)
        return LMHead(self, settings, embedding)


@register("head", "Pooler")
@dataclass(frozen=True)
class Pooler:
    """BERT's pooler: the hidden state of the first position through a dense layer and tanh."""

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        return FirstTokenPooler(settings)


@register("head", "ClassHead")
@dataclass(frozen=True)
class ClassHead:
    """Classification of the whole input, from the pooled vector."""

    classes: int
    dropout: float = 0.0
    transform: Activation | None = None  # a dense layer with a norm before the output layer (ModernBERT)

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        transform = None if self.transform is None else HeadTransform(settings, self.transform)
        return ClassificationHead(settings, self.classes, self.dropout, transform)


@dataclass(frozen=True)
class DiscriminatorHeadSpec:
    """Replaced-token detection at each position (ELECTRA, arXiv:2003.10555)."""

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        return DiscriminatorHead(settings)


class HeadSpec(Protocol):
    """Specification of a head: plain data. Objectives with equal specifications share the head."""

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        """The head for a network of these settings."""


class ScoringHead(Protocol):
    """A head with logits and a loss."""

    __call__: Callable[..., Tensor]  # (..., width) -> (..., classes) logits

    def loss(self, hidden: Tensor, labels: Tensor, denominator: float, smoothing: float = 0.0) -> Tensor:
        """(N, width), (N,) -> the sum of the losses divided by `denominator`. `smoothing`: probability mass spread
        uniformly over all classes (label smoothing)."""


@runtime_checkable
class LabelScoringHead(Protocol):
    """A head that gives the probability of one token without computing those of all others."""

    def label_scores(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """(N, width), (N,) -> (N,) log-probabilities"""


class LMHead(TensorModule):
    """Language-modeling head over the token embedding, or over a matrix of the same shape (`tied = false`)."""

    def __init__(self, spec: LMHeadSpec, settings: NetworkSettings, embedding: InputEmbedding):
        super().__init__()
        width = embedding.tokens.embedding_dim
        initializer = default_initializer(settings, settings.width)
        head = settings.head or HeadSettings()
        bias = settings.bias if head.bias is None else head.bias
        self.dense = Linear(settings.width, width, bias, initializer) if spec.transform else None
        self.norm = build_norm(settings.norm, width) if spec.transform else None
        self.activation = ACTIVATIONS[head.activation or settings.activation]
        self.dropout = Dropout(head.dropout) if head.dropout else nn.Identity()
        self.dropout_first = head.dropout_position == "before_norm"
        self.bias = nn.Parameter(torch.zeros(embedding.tokens.num_embeddings)) if spec.bias else None
        self.scale = settings.width**-0.5 if settings.embedding.scale_logits else 1.0
        self.softcap = settings.embedding.logit_softcap
        self.one_direction = settings.width // 2 if spec.one_direction else None
        self.z_loss = 0.0  # coefficient of the z-loss, in training only (training.z_loss)
        if settings.embedding.tied:
            assert not isinstance(embedding.tokens, NoTokens), "an output matrix of its own is needed"
            self.tokens = embedding.tokens  # shared: the network stores and counts it as part of the embedding
        else:
            output = Initializer(0.0) if settings.initialization.zero_output else initializer
            self.output = Linear(width if spec.transform else self.one_direction or settings.width,
                                 embedding.tokens.num_embeddings, False, output)

    @property
    def weight(self) -> Tensor:
        if "output" in self._modules:
            return self.output.weight
        assert isinstance(self.tokens, LookupEmbedding)  # adaptive embeddings have another head
        return self.tokens.weight

    def transform(self, hidden: Tensor) -> Tensor:
        if self.one_direction is not None:  # of both directions the one from left to right, which stands first
            hidden = hidden[..., :self.one_direction]
        if self.scale != 1.0:
            hidden = hidden * self.scale
        if self.dense is None or self.norm is None:
            return hidden
        hidden = self.activation(self.dense(hidden))
        return self.norm(self.dropout(hidden)) if self.dropout_first else self.dropout(self.norm(hidden))

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., width) -> (..., vocabulary) logits."""
        return self.cap(functional.linear(self.transform(hidden), self.weight, self.bias))

    def cap(self, logits: Tensor) -> Tensor:
        """Soft-capped logits, if the network has `logit_softcap`."""
        return logits if self.softcap is None else (logits / self.softcap).tanh() * self.softcap

    def loss_without(self, excluded: Tensor, hidden: Tensor, labels: Tensor, denominator: float | Tensor) -> Tensor:
        """The loss if the token ids `excluded` have probability 0: they are never predicted. `denominator` may be (N,),
        one for each target."""
        bias = torch.zeros_like(self.weight[:, 0]) if self.bias is None else self.bias
        return linear_cross_entropy(self.transform(hidden), self.weight, bias.index_fill(0, excluded, -torch.inf),
                                    labels, denominator, z_loss=self.z_loss if self.training else 0.0)

    def loss(self, hidden: Tensor, labels: Tensor, denominator: float, smoothing: float = 0.0) -> Tensor:
        """(N, width) at target positions, (N,) labels -> the sum of the losses divided by `denominator`."""
        return linear_cross_entropy(self.transform(hidden), self.weight, self.bias, labels, denominator, smoothing,
                                    self.softcap, self.z_loss if self.training else 0.0)

    def sampled_loss(self, hidden: Tensor, labels: Tensor, denominator: float, count: int) -> Tensor:
        """The loss over the label and a random sample of `count` tokens of the vocabulary (`sampled_softmax.py`)."""
        sample = sample_tokens(count, len(self.weight), hidden.device)
        losses = sampled_cross_entropy(self.transform(hidden), self.weight, self.bias, labels, sample)
        return losses.sum() / denominator

    def loss_and_correct(self, hidden: Tensor, labels: Tensor, denominator: float) -> LMLossOutput:
        """The loss, and whether the most probable token is the label at each target position."""
        return linear_cross_entropy_and_correct(self.transform(hidden), self.weight, self.bias, labels, denominator,
                                                self.softcap, self.z_loss if self.training else 0.0)

    def loss_and_sample(self, hidden: Tensor, labels: Tensor, denominator: float) -> LMLossOutput:
        """The loss, and a token sampled at each target position (ELECTRA's generator)."""
        return linear_cross_entropy_and_sample(self.transform(hidden), self.weight, self.bias, labels, denominator,
                                               self.softcap, self.z_loss if self.training else 0.0)


class DiscriminatorHead(TensorModule):
    """ELECTRA's discriminator: dense layer, activation, one logit per position."""

    def __init__(self, settings: NetworkSettings):
        super().__init__()
        initializer = default_initializer(settings, settings.width)
        self.dense = Linear(settings.width, settings.width, True, initializer)
        self.activation = ACTIVATIONS[settings.activation]
        self.output = Linear(settings.width, 1, True, initializer)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., width) -> (...) logits: positive if the token is more likely replaced than original."""
        return self.output(self.activation(self.dense(hidden)))[..., 0]


class FirstTokenPooler(TensorModule):
    """Dense layer and tanh over the first position."""

    def __init__(self, settings: NetworkSettings):
        super().__init__()
        self.dense = Linear(settings.width, settings.width, True, default_initializer(settings, settings.width))

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, L, width) -> (B, width)"""
        return torch.tanh(self.dense(hidden[:, 0]))


class HeadTransform(TensorModule):
    """Dense layer, activation and norm, as before every output layer of ModernBERT (arXiv:2412.13663)."""

    def __init__(self, settings: NetworkSettings, activation: Activation):
        super().__init__()
        self.dense = Linear(settings.width, settings.width, settings.bias,
                            default_initializer(settings, settings.width))
        self.activation = ACTIVATIONS[activation]
        self.norm = build_norm(settings.norm, settings.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))


class ClassificationHead(TensorModule):
    """Dropout and linear layer over a pooled vector."""

    def __init__(self, settings: NetworkSettings, classes: int, dropout: float, transform: HeadTransform | None = None):
        super().__init__()
        self.transform = transform
        self.dropout = Dropout(dropout)
        self.output = Linear(settings.width, classes, True, default_initializer(settings, settings.width))

    def forward(self, pooled: Tensor) -> Tensor:
        return self.output(self.dropout(pooled if self.transform is None else self.transform(pooled)))

    def loss(self, pooled: Tensor, labels: Tensor, denominator: float, smoothing: float = 0.0) -> Tensor:
        logits = self(pooled).float()
        return functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing) / denominator
