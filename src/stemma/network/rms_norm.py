"""RMSNorm (arXiv:1910.07467) of hidden states in any precision.

torch's fused kernel needs an input and a weight of one type, and warns if a bf16 input meets a weight in fp32. Here the
weight is converted.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class RMSNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        weight = None if self.weight is None else self.weight.to(x.dtype)
        return functional.rms_norm(x, self.normalized_shape, weight, self.eps)
