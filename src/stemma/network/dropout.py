"""Dropout that costs little on a CPU.

torch draws a double for every element. A random byte decides as well, and eight of them come from one 64-bit number; a
rate that is no multiple of 1/256 is met on average, by drawing the threshold between its two neighbours, and the kept
values are scaled by the share that was really kept.
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
    exact = rate * 256
    dropped = int(exact) + int(torch.rand(()) < exact - int(exact))  # of 256 byte values
    words = torch.empty((count + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    mask = torch.empty(shape, dtype=dtype)
    torch.ge(words.view(torch.int8)[:count].view(shape), dropped - 128, out=mask)
    return mask.mul_(256 / max(256 - dropped, 1))
