"""Fine-tuning heads: sequence classification and extractive question answering.

Model families differ in pooling. BERT has its pooler (`heads.py`); others take the hidden state of one position, or a
mean, and have a dense layer before the output layer, as in their authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from stemma.network.activation import ACTIVATIONS
from stemma.network.dropout import Dropout
from stemma.network.embedding import InputEmbedding
from stemma.network.heads import HeadTransform
from stemma.network.initialization import Linear, default_initializer
from stemma.network.module import TensorModule
from stemma.registry import register
from stemma.schema.network import NetworkSettings
from stemma.schema.network_tables import Activation

PoolingPosition = Literal["first", "last", "mean"]


@register("head", "SentenceHead")
@dataclass(frozen=True)
class SentenceHead:
    """Classification of the whole input, from the hidden state of one position or the mean of all."""

    classes: int
    place: PoolingPosition = "first"
    dense: Activation | None = "tanh"  # activation of a dense layer before the output layer; None: no such layer
    dropout: float = 0.1
    early: bool = False  # dropout also before the dense layer (RoBERTa, ELECTRA)
    bias: bool = True
    norm: bool = False  # a norm after the dense layer (ModernBERT)

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        return SequenceClassificationHead(settings, self)


@register("head", "SpanHead")
@dataclass(frozen=True)
class SpanHead:
    """Extractive question answering: start and end logits at each position."""

    dropout: float = 0.0  # on the hidden states (DistilBERT)
    transform: Activation | None = None  # a dense layer with a norm before the output layer (ModernBERT)

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        transform = None if self.transform is None else HeadTransform(settings, self.transform)
        return QuestionAnsweringHead(settings, self.dropout, transform)


class SequenceClassificationHead(TensorModule):
    """Pooling, optional dense layer, output layer."""

    def __init__(self, settings: NetworkSettings, spec: SentenceHead):
        super().__init__()
        width, initializer = settings.width, default_initializer(settings, settings.width)
        self.pooling, self.dropout_before_dense = spec.place, spec.early
        self.transform = HeadTransform(settings, spec.dense) if spec.dense is not None and spec.norm else None
        self.dense = Linear(width, width, True, initializer) if spec.dense is not None and not spec.norm else None
        self.activation = ACTIVATIONS[spec.dense] if spec.dense is not None else None
        self.dropout = Dropout(spec.dropout)
        self.output = Linear(width, spec.classes, spec.bias, initializer)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """(B, L, width), (B,) row lengths -> (B, classes)"""
        x = pool(hidden, lengths, self.pooling)
        if self.transform is not None:
            x = self.transform(x)
        if self.dense is not None and self.activation is not None:
            x = self.activation(self.dense(self.dropout(x) if self.dropout_before_dense else x))
        return self.output(self.dropout(x))


def pool(hidden: Tensor, lengths: Tensor, pooling: PoolingPosition) -> Tensor:
    """(B, L, width), (B,) row lengths -> (B, width)"""
    if pooling == "first":
        return hidden[:, 0]
    if pooling == "last":
        return hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]
    mask = (torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]).to(hidden.dtype)[..., None]
    return (hidden * mask).sum(1) / lengths[:, None].to(hidden.dtype)


class QuestionAnsweringHead(TensorModule):
    """Start and end logits at each position."""

    def __init__(self, settings: NetworkSettings, dropout: float, transform: HeadTransform | None = None):
        super().__init__()
        self.transform = transform
        self.dropout = Dropout(dropout)
        self.output = Linear(settings.width, 2, True, default_initializer(settings, settings.width))

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, L, width) -> (B, L, 2)"""
        return self.output(self.dropout(hidden if self.transform is None else self.transform(hidden)))
