"""Weights laid out once for many products with few rows: text that is written token by token.

A product of eight rows with a matrix is bound by how fast the matrix can be read, and the plain layout is read badly:
on the processors tried, oneDNN's blocked one takes half the time. It is a second copy of the weights, so it belongs to
a view of the network, which lives as long as it pays. Where torch has no such product, nothing changes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.heads import TokenScorer
from stemma.network.initialization import Linear
from stemma.network.network import Network
from stemma.network.views import eval_view, view

FEWEST = 3  # for one or two rows the plain layout is as fast


class PackedProduct:
    """x -> x @ weight.T + bias."""

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int):
        self.weight, self.bias = weight, bias
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[:-1].numel() < FEWEST:
            return functional.linear(x, self.weight, self.bias)
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return found


class PackedLinear(nn.Linear):
    """A linear layer of a view: its parameters are the network's, its product is a packed one."""

    product: PackedProduct

    def forward(self, input: Tensor) -> Tensor:
        return self.product(input)


class PackedScorer(TokenScorer):
    """The scores of all tokens, by a packed copy of the embedding matrix."""

    product: PackedProduct

    def forward(self, hidden: Tensor) -> Tensor:
        return self.product(self.prepare(hidden))


def packed_view(network: Network, rows: int) -> Network:
    """The network in eval mode, with packed weights if that pays for so many rows at a time. The weights must not
    change while it is used."""
    if rows < FEWEST or not _possible(network):
        return eval_view(network)

    def replace(module: nn.Module) -> nn.Module | None:
        # by the exact class: what somebody derives from it may compute something else
        if type(module) in (nn.Linear, Linear):
            assert isinstance(module, nn.Linear)
            return _become(module, PackedLinear, PackedProduct(module.weight, module.bias, rows))
        if type(module) is TokenScorer:
            return _become(module, PackedScorer, PackedProduct(module.table, module.bias, rows))
        return None

    return view(network, replace)


def _become(module: nn.Module, kind: type[PackedLinear] | type[PackedScorer], product: PackedProduct) -> nn.Module:
    packed = object.__new__(kind)
    packed.__dict__.update(vars(module), product=product)
    return packed


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
