"""Absolute position embeddings: learned (BERT) or sinusoidal (arXiv:1706.03762, section 3.5)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stemma.network.initialization import Initializer, LookupEmbedding
from stemma.network.module import TensorModule


class LearnedPositionEmbedding(TensorModule):
    """One vector per position. The first `offset` rows are unused (RoBERTa has two)."""

    def __init__(self, maximum: int, width: int, offset: int, initializer: Initializer):
        super().__init__()
        self.offset = offset
        self.table = LookupEmbedding(maximum + offset, width, initializer)

    def forward(self, input_ids: Tensor, position_ids: Tensor | None) -> Tensor:
        if position_ids is None:
            return self.table.weight[self.offset:self.offset + input_ids.shape[1]]  # (L, width), for all rows
        return self.table(position_ids + self.offset)


class SinusoidalPositionEmbedding(TensorModule):
    """Sines and cosines with wavelengths from 2 pi to 10,000 x 2 pi. It has no parameters and no buffers."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def forward(self, input_ids: Tensor, position_ids: Tensor | None) -> Tensor:
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)
        return self.encode(position_ids, self.width)

    @staticmethod
    def encode(positions: Tensor, width: int) -> Tensor:
        """(..., L) -> (..., L, width)"""
        inv_freq = torch.exp(torch.arange(0, width, 2, device=positions.device) * (-math.log(10_000.0) / width))
        angle = positions[..., None] * inv_freq  # (..., L, width / 2)
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., :width]
