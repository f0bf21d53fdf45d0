"""Weights laid out once for many products with few rows: text that is written token by token.

A product of eight rows with a matrix is bound by how fast the matrix can be read, and the plain layout is read badly:
on the processors tried, oneDNN's blocked one takes half the time. It is a second copy of the weights, so it belongs to
a view of the network, which lives as long as it pays. Where torch has no such product, nothing changes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.heads import LMHead
from stemma.network.initialization import Linear
from stemma.network.network import Network
from stemma.network.views import eval_view, inference_view

MIN_ROWS = 3  # for one or two rows the plain layout is as fast


class PrepackedProduct:
    """x -> x @ weight.T + bias."""

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int):
        self.weight, self.bias = weight, bias
        self.prepacked_weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[:-1].numel() < MIN_ROWS:
            return functional.linear(x, self.weight, self.bias)
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.prepacked_weight, self.bias, "none", [], "")
        return found


class PrepackedLinear(nn.Linear):
    """A linear layer of a view: its parameters are the network's, its product is a packed one."""

    product: PrepackedProduct

    def forward(self, input: Tensor) -> Tensor:
        return self.product(input)


class PrepackedLMHead(LMHead):
    """The scores of all tokens, by a packed copy of the embedding matrix."""

    product: PrepackedProduct

    def forward(self, hidden: Tensor) -> Tensor:
        return self.product(self.transform(hidden))


def prepacked_view(network: Network, rows: int) -> Network:
    """The network in eval mode, with packed weights if that pays for so many rows at a time. The weights must not
    change while it is used."""
    if rows < MIN_ROWS or not _is_supported(network):
        return eval_view(network)

    def replace(module: nn.Module) -> nn.Module | None:
        # by the exact class: what somebody derives from it may compute something else
        if type(module) in (nn.Linear, Linear):
            assert isinstance(module, nn.Linear)
            return _with_product(module, PrepackedLinear, PrepackedProduct(module.weight, module.bias, rows))
        if type(module) is LMHead:
            return _with_product(module, PrepackedLMHead, PrepackedProduct(module.weight, module.bias, rows))
        return None

    return inference_view(network, replace)


def _with_product(module: nn.Module, new_class: type[PrepackedLinear] | type[PrepackedLMHead],
                  product: PrepackedProduct) -> nn.Module:
    packed = object.__new__(new_class)
    packed.__dict__.update(vars(module), product=product)
    return packed


def _is_supported(network: nn.Module) -> bool:
    """Whether this torch has the product at all: what it compiles networks with, not a promised interface."""
    plain = all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in network.parameters())
    if not plain or not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    try:
        probe = PrepackedProduct(torch.ones(16, 16), torch.zeros(16), MIN_ROWS)
        return bool((probe(torch.ones(MIN_ROWS, 16)) == 16).all())
    except (AttributeError, RuntimeError):
        return False
