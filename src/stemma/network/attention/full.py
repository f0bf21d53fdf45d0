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
        if context.keys is None:
            query, key, value = self.split(self.input(x), 3)
        else:
            inner = self.heads * self.head_width
            weight, bias = self.input.weight, self.input.bias
            (query,) = self.split(functional.linear(x, weight[:inner], bias[:inner]), 1)
            key, value = self.split(functional.linear(context.keys, weight[inner:], bias[inner:]), 2)
        mixed = attend(query, key, value, context.mask, self.dropout if self.training else 0.0)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def split(self, packed: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(B, L, parts x heads x D) -> parts of (B, heads, L, D), laid out anew in one pass: the products that follow
        would otherwise do it one by one."""
        batch, length, _ = packed.shape
        apart = packed.view(batch, length, parts, self.heads, self.head_width)
        return apart.permute(2, 0, 3, 1, 4).contiguous().unbind(0)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask, dropout: float) -> Tensor:
    """(B, heads, Q, D), (B, heads, K, D), (B, heads, K, D) -> (B, heads, Q, D)."""
    if dropout and query.device.type == "cpu":
        return _attend_with_dropout(query, key, value, mask, dropout)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask.dense, dropout_p=dropout,
                                                   is_causal=mask.causal)


def _attend_with_dropout(query: Tensor, key: Tensor, value: Tensor, mask: Mask, dropout: float) -> Tensor:
    scores = (query * (1.0 / math.sqrt(query.shape[-1]))) @ key.transpose(-1, -2)  # (B, heads, Q, K)
    never = torch.finfo(scores.dtype).min  # not -inf: a place that sees nobody (only filling) must not become NaN
    if mask.causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu_(1)
        scores = scores.masked_fill(hidden, never)
    elif mask.dense is not None:
        scores = scores.masked_fill(~mask.dense, never)
    weights = scores.softmax(-1)
    return (weights * keep_mask(weights.shape, dropout, weights.dtype)) @ value
