"""FLOPs of torch's fused attention on a CPU, which torch's own counter does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _attention(query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Scores and their mixture: two products. Shapes are (B, heads, places, width)."""
    batch, heads, queries, width = query
    keys, mixed = key[2], value[3]
    return 2 * batch * heads * queries * keys * (width + mixed)


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None,
                        **__: Any) -> int:
    """Two gradients for each product of the way forth. That the kernel computes the scores once more is its own affair:
    a recipe does not become dearer by the way it is computed."""
    return 2 * _attention(query, key, value)


CPU_ATTENTION: dict[Any, Callable[..., int]] = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
                 torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward}
