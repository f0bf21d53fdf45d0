"""What a fine-tuned network answers with: one vector of a whole input, or two numbers a place for where an answer is.

Families differ in how they make one vector of a text. BERT has its pooler (`heads.py`); others read a place of the text
and put a layer of their own before the answer, as their authors' code does.
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
    """Guess for a whole input, from one of its places (or the mean of all)."""

    classes: int
    place: PoolingPosition = "first"
    dense: Activation | None = "tanh"  # a layer before the answer, and what follows it; None: no such layer
    dropout: float = 0.1
    early: bool = False  # dropout also before that layer (RoBERTa, ELECTRA)
    bias: bool = True
    norm: bool = False  # and a norm behind it (ModernBERT)

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        return SequenceClassificationHead(settings, self)


@register("head", "SpanHead")
@dataclass(frozen=True)
class SpanHead:
    """Guess where an answer begins and where it ends: two numbers a place."""

    dropout: float = 0.0  # of the hidden states (DistilBERT)
    transform: Activation | None = None  # a layer with a norm before the answer (ModernBERT)

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        transform = None if self.transform is None else HeadTransform(settings, self.transform)
        return QuestionAnsweringHead(settings, self.dropout, transform)


class SequenceClassificationHead(TensorModule):
    def __init__(self, settings: NetworkSettings, spec: SentenceHead):
        super().__init__()
        width, usual = settings.width, default_initializer(settings, settings.width)
        self.pooling, self.dropout_before_dense = spec.place, spec.early
        self.transform = HeadTransform(settings, spec.dense) if spec.dense is not None and spec.norm else None
        self.dense = Linear(width, width, True, usual) if spec.dense is not None and not spec.norm else None
        self.activation = ACTIVATIONS[spec.dense] if spec.dense is not None else None
        self.dropout = Dropout(spec.dropout)
        self.output = Linear(width, spec.classes, spec.bias, usual)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """(B, L, width), (B,) places in use -> (B, classes)"""
        x = pool(hidden, lengths, self.pooling)
        if self.transform is not None:
            x = self.transform(x)
        if self.dense is not None and self.activation is not None:
            x = self.activation(self.dense(self.dropout(x) if self.dropout_before_dense else x))
        return self.output(self.dropout(x))


def pool(hidden: Tensor, lengths: Tensor, pooling: PoolingPosition) -> Tensor:
    """(B, L, width), (B,) -> (B, width)"""
    if pooling == "first":
        return hidden[:, 0]
    if pooling == "last":
        return hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]
    used = (torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]).to(hidden.dtype)[..., None]
    return (hidden * used).sum(1) / lengths[:, None].to(hidden.dtype)


class QuestionAnsweringHead(TensorModule):
    def __init__(self, settings: NetworkSettings, dropout: float, transform: HeadTransform | None = None):
        super().__init__()
        self.transform = transform
        self.dropout = Dropout(dropout)
        self.output = Linear(settings.width, 2, True, default_initializer(settings, settings.width))

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, L, width) -> (B, L, 2)"""
        return self.output(self.dropout(hidden if self.transform is None else self.transform(hidden)))
