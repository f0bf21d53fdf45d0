"""Fast dropout on CPU.

torch samples a double for every element. Here 16 random bits decide, four of them from one 64-bit number of numpy's
SFC64, a fast generator. torch's generator seeds it, so that `torch.manual_seed` still determines everything. The
dropout probability is rounded to 1/65,536, and the remaining values are scaled by exactly the rounded probability.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from stemma.network.module import TensorModule


class Dropout(TensorModule):
    """nn.Dropout with a faster CPU implementation."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        if x.device.type != "cpu":
            return functional.dropout(x, self.p)
        return x * dropout_mask(x.shape, self.p, x.dtype)

    def extra_repr(self) -> str:
        return str(self.p)


class VariationalDropout(Dropout):
    """Dropout with one mask for all positions of a row (arXiv:1512.05287)."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, width)"""
        if not self.training or self.p == 0.0:
            return x
        return x * dropout_mask(torch.Size([len(x), 1, x.shape[2]]), self.p, x.dtype, x.device)


def dropout_mask(shape: torch.Size, p: float, dtype: torch.dtype,
                 device: torch.device = torch.device("cpu")) -> Tensor:
    """A tensor of zeros with probability p, and of 1 / (1 - p) otherwise."""
    if device.type != "cpu":
        return functional.dropout(torch.ones(shape, dtype=dtype, device=device), p)
    count = shape.numel()
    dropped = min(round(p * 65536), 65535)  # of 65,536 equally likely values
    words = np.random.SFC64(int(torch.randint(2**62, ()))).random_raw((count + 3) // 4)
    bits = torch.from_numpy(words.view(np.int16))[:count].view(shape)
    mask = torch.empty(shape, dtype=dtype)
    torch.ge(bits, dropped - 32768, out=mask)
    return mask.mul_(65536 / (65536 - dropped))
