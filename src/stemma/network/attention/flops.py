"""FLOPs of torch's fused attention on a CPU, which torch's own counter does not know."""

from __future__ import annotations

from collections.abc import Callable

import torch

Shape = tuple[int, ...]


def _attention(query: Shape, key: Shape, value: Shape, *_: object, **__: object) -> int:
    """Scores and their mixture: two products. Shapes are (B, heads, places, width)."""
    batch, heads, queries, width = query
    keys, mixed = key[2], value[3]
    return 2 * batch * heads * queries * keys * (width + mixed)


def _attention_backward(gradient: Shape, query: Shape, key: Shape, value: Shape, *_: object, **__: object) -> int:
    """Two gradients for each product of the way forth. That the kernel computes the scores once more is its own affair:
    a recipe does not become dearer by the way it is computed."""
    return 2 * _attention(query, key, value)


CPU_ATTENTION: dict[object, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward}
