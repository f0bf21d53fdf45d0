"""Where a token stands, added to what it is: learned vectors (BERT) or sinusoids (arXiv:1706.03762, section 3.5)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stemma.network.initialization import Draw, LookupEmbedding
from stemma.network.module import TensorModule


class Learned(TensorModule):
    """One vector a place; `offset` places at the start of the table are not used (RoBERTa keeps two)."""

    def __init__(self, maximum: int, width: int, offset: int, draw: Draw):
        super().__init__()
        self.offset = offset
        self.table = LookupEmbedding(maximum + offset, width, draw)

    def forward(self, ids: Tensor, positions: Tensor | None) -> Tensor:
        if positions is None:
            return self.table.weight[self.offset:self.offset + ids.shape[1]]  # (L, width), for every row alike
        return self.table(positions + self.offset)


class Sinusoidal(TensorModule):
    """Sines and cosines whose wavelengths grow from 2 pi to 10,000 x 2 pi; nothing is learned, nothing is stored."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def forward(self, ids: Tensor, positions: Tensor | None) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device) if positions is None else positions
        return self.encode(places, self.width)

    @staticmethod
    def encode(places: Tensor, width: int) -> Tensor:
        """(..., L) -> (..., L, width)"""
        rate = torch.exp(torch.arange(0, width, 2, device=places.device) * (-math.log(10_000.0) / width))
        angle = places[..., None] * rate  # (..., L, width / 2)
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., :width]
