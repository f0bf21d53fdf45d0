"""Dropout that costs little on a CPU.

torch draws a double for every element; sixteen random bits decide as well, and are drawn four at a time from 64-bit
words. The kept share is then exact to 1/65,536, and the scale uses that exact share.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Dropout(nn.Module):
    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        if x.device.type != "cpu":
            return functional.dropout(x, self.rate)
        return x * keep_mask(x.shape, self.rate, x.dtype)

    def extra_repr(self) -> str:
        return str(self.rate)


def keep_mask(shape: torch.Size, rate: float, dtype: torch.dtype) -> Tensor:
    """A tensor of 0 and 1/kept; on the CPU only."""
    count = shape.numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    threshold = round(rate * 65536) - 32768
    kept = (65536 - round(rate * 65536)) / 65536
    return (words.view(torch.int16)[:count].view(shape) >= threshold).to(dtype).mul_(1.0 / kept)
