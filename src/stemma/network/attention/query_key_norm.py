"""QK-norm: RMSNorm of the queries and keys of each head (arXiv:2010.04245), so that attention scores stay bounded.

Without weights a score is at most sqrt(head width). It is computed before or after rotary positions; a rotation
preserves the norm of a vector, so the order matters only with weights.
"""

from __future__ import annotations

from torch import Tensor

from stemma.network.module import TensorModule
from stemma.network.rms_norm import RMSNorm
from stemma.schema.network import NetworkSettings


class QueryKeyNorm(TensorModule):
    """Norms of queries (index 0) and keys (index 1)."""

    def __init__(self, head_width: int, epsilon: float, weight: bool, before_rotation: bool):
        super().__init__()
        self.query, self.key = (RMSNorm(head_width, eps=epsilon, elementwise_affine=weight) for _ in range(2))
        self.before_rotation = before_rotation

    def forward(self, x: Tensor, index: int) -> Tensor:
        """(..., head width) -> (..., head width)"""
        normalized: Tensor = (self.query if index == 0 else self.key)(x)
        return normalized


def build_query_key_norm(settings: NetworkSettings) -> QueryKeyNorm | None:
    attention = settings.attention
    if attention.qk_norm == "none":
        return None
    return QueryKeyNorm(attention.head_width or settings.width // settings.heads, settings.norm.epsilon,
                        attention.qk_norm_weight, attention.qk_norm == "before")
