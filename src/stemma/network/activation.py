"""Activation functions, by their name in a recipe."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional


def relu2(x: Tensor) -> Tensor:
    """The square of ReLU, which Primer's search found (arXiv:2109.08668)."""
    return functional.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "relu2": relu2,
    "tanh": torch.tanh,
    "silu": functional.silu,
}
