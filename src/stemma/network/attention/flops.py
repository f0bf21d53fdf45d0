"""FLOPs of torch's fused attention on CPU, which torch's FLOP counter lacks."""

from __future__ import annotations

from collections.abc import Callable

import torch

Shape = tuple[int, ...]


def _attention(query: Shape, key: Shape, value: Shape, *_: object, **__: object) -> int:
    """Two matrix products: the scores, and the weighted sum of the values. Shapes are (B, heads, positions, width)."""
    batch, heads, queries, width = query
    keys, value_width = key[2], value[3]
    return 2 * batch * heads * queries * keys * (width + value_width)


def _attention_backward(gradient: Shape, query: Shape, key: Shape, value: Shape, *_: object, **__: object) -> int:
    """Two gradients for each product of the forward pass. The kernel also recomputes the scores, which is not counted:
    FLOPs are a property of the recipe, not of the kernel."""
    return 2 * _attention(query, key, value)


CPU_ATTENTION: dict[object, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward}
