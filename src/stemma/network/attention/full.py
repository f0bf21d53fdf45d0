"""Every place attends to every place that its visibility allows (arXiv:1706.03762, section 3.2).

Query, key and value come from one matrix product; the kernel is torch's fused attention, with the compiled mask in
whatever form is cheapest. On a CPU the fused kernel knows no dropout, so training with dropout spells the product out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.dropout import keep_mask
from stemma.network.streams import Context
from stemma.visibility import Mask


class FullAttention(nn.Module):
    def __init__(self, width: int, heads: int, head_width: int | None = None, dropout: float = 0.0):
        super().__init__()
        self.heads = heads
        self.head_width = head_width or width // heads
        self.dropout = dropout
        inner = heads * self.head_width
        self.input = nn.Linear(width, 3 * inner)  # query, key and value, in this order
        self.output = nn.Linear(inner, width)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        batch, length, _ = x.shape
        packed = self.input(x).view(batch, length, 3, self.heads, self.head_width)
        query, key, value = packed.permute(2, 0, 3, 1, 4)  # each (B, heads, L, D)
        mixed = attend(query, key, value, context.mask, self.dropout if self.training else 0.0)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, -1))


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask, dropout: float) -> Tensor:
    """(B, heads, Q, D), (B, heads, K, D), (B, heads, K, D) -> (B, heads, Q, D)."""
    if dropout and query.device.type == "cpu":
        return _attend_with_dropout(query, key, value, mask, dropout)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask.dense, dropout_p=dropout,
                                                   is_causal=mask.causal)


def _attend_with_dropout(query: Tensor, key: Tensor, value: Tensor, mask: Mask, dropout: float) -> Tensor:
    scores = (query * (1.0 / math.sqrt(query.shape[-1]))) @ key.transpose(-1, -2)  # (B, heads, Q, K)
    if mask.causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu_(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    elif mask.dense is not None:
        scores = scores.masked_fill(~mask.dense, float("-inf"))
    weights = scores.softmax(-1)
    return (weights * keep_mask(weights.shape, dropout, weights.dtype)) @ value
