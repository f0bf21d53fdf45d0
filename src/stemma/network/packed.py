"""Weights laid out once for many products with few rows: text that is written token by token.

A product of eight rows with a matrix is bound by how fast the matrix can be read, and the plain layout is read badly:
on the processors tried, oneDNN's blocked one takes half the time. It is a second copy of the weights, so it is made
for as long as it pays and no longer. Where torch has no such product, nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.heads import TokenScorer

FEWEST = 3  # for one or two rows the plain layout is as fast


class PackedProduct:
    """x -> x @ weight.T + bias."""

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int):
        self.weight, self.bias = weight, bias
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[:-1].numel() < FEWEST:
            return functional.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


@contextmanager
def packed(network: nn.Module, rows: int) -> Iterator[None]:
    """While this lasts, the network's products are those of packed weights; the weights must not change meanwhile."""
    changed: list[nn.Module] = []
    try:
        if rows >= FEWEST and _possible(network):
            for module in network.modules():
                if isinstance(module, nn.Linear):
                    _replace(module, PackedProduct(module.weight, module.bias, rows))
                    changed.append(module)
                elif isinstance(module, TokenScorer):
                    _replace(module, _Scores(module, PackedProduct(module.table, module.bias, rows)))
                    changed.append(module)
        yield
    finally:
        for module in changed:
            del module.__dict__["forward"]


class _Scores:
    def __init__(self, scorer: TokenScorer, product: PackedProduct):
        self.scorer, self.product = scorer, product

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.product(self.scorer.prepare(hidden))


def _replace(module: nn.Module, forward: object) -> None:
    """Past nn.Module's own bookkeeping, so that no weight is registered twice."""
    module.__dict__["forward"] = forward


def _possible(network: nn.Module) -> bool:
    """Whether this torch has the product at all: what it compiles networks with, not a promised interface."""
    plain = all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in network.parameters())
    if not plain or not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    try:
        trial = PackedProduct(torch.ones(16, 16), torch.zeros(16), FEWEST)
        return bool((trial(torch.ones(FEWEST, 16)) == 16).all())
    except (AttributeError, RuntimeError):
        return False
