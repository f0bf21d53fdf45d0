"""ULMFiT's classification head (arXiv:1801.06146, section 3.3).

A few words of a long text can decide its class, so the last hidden state is not enough: it is concatenated with the
maximum and the mean over all positions. Two dense layers follow, with batch normalization and dropout before each, as
in the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.dropout import Dropout
from stemma.network.embedding import InputEmbedding
from stemma.network.initialization import Linear, default_initializer
from stemma.network.module import TensorModule
from stemma.network.task_heads import pool
from stemma.registry import register
from stemma.schema.network import NetworkSettings


@register("head", "ConcatPoolHead")
@dataclass(frozen=True)
class ConcatPoolHead:
    """Classification of the whole input, from the last hidden state, the maximum and the mean."""

    classes: int
    hidden: int = 50  # width of the dense layer
    dropout: float = 0.4  # before the dense layer
    output_dropout: float = 0.1  # before the output layer

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        return ConcatPoolClassificationHead(settings, self)


class ConcatPoolClassificationHead(TensorModule):
    """Concat pooling, a dense layer with ReLU, output layer."""

    def __init__(self, settings: NetworkSettings, spec: ConcatPoolHead):
        super().__init__()
        width = 3 * settings.width
        self.norm, self.dropout = BatchNorm(width), Dropout(spec.dropout)
        self.dense = Linear(width, spec.hidden, True, default_initializer(settings, width))
        self.output_norm, self.output_dropout = BatchNorm(spec.hidden), Dropout(spec.output_dropout)
        self.output = Linear(spec.hidden, spec.classes, True, default_initializer(settings, spec.hidden))

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """(B, L, width), (B,) row lengths -> (B, classes)"""
        hidden = hidden.float()
        padding = torch.arange(hidden.shape[1], device=hidden.device) >= lengths[:, None]
        maximum = hidden.masked_fill(padding[..., None], -torch.inf).amax(1)
        pooled = torch.cat([pool(hidden, lengths, "last"), maximum, pool(hidden, lengths, "mean")], 1)
        x = functional.relu(self.dense(self.dropout(self.norm(pooled))))
        return self.output(self.output_dropout(self.output_norm(x)))


class BatchNorm(nn.BatchNorm1d):
    """Batch normalization. A single row has no variance, so the last batch of an epoch may be normalized with the
    running statistics."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 1 or not self.training:
            return super().forward(x)
        return functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0,
                                     self.eps)
