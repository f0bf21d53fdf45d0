"""The span boundary objective of SpanBERT (arXiv:1907.10529, section 3.2), token by token."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    variance = ((x - x.mean()) ** 2).mean()
    return (x - x.mean()) / torch.sqrt(variance + epsilon) * weight + bias


def loss(outputs: Tensor, hidden: list[list[int]], original: Tensor, weights: dict[str, Tensor],
         epsilon: float) -> Tensor:
    """The mean of -log p over all masked positions. `outputs` (B, L, width) of the encoder; `hidden`: the masked
    positions of each row, ascending; `original` (B, L) tokens."""
    total, count = torch.zeros(()), 0
    for row, masked in enumerate(hidden):
        for position in masked:
            start = position
            while start - 1 in masked:
                start -= 1
            end = position
            while end + 1 in masked:
                end += 1
            index = min(position - start, len(weights["places"]) - 1)
            x = torch.cat([outputs[row, start - 1], outputs[row, end + 1], weights["places"][index]])
            for layer in ("input", "output"):
                x = gelu(weights[f"{layer}.weight"] @ x + weights[f"{layer}.bias"])
                x = layer_norm(x, weights[f"{layer}_norm.weight"], weights[f"{layer}_norm.bias"], epsilon)
            scores = weights["table"] @ x + weights["bias"]
            total = total - torch.log_softmax(scores, 0)[original[row, position]]
            count += 1
    return total / count
