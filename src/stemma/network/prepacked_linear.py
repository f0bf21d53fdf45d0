"""Linear layers with prepacked weights (oneDNN), for incremental decoding on CPU.

A product of a few rows with a matrix is bound by memory bandwidth. With oneDNN's blocked layout it takes half the time
on the processors we measured. The layout is a second copy of the weights, so it belongs to a temporary view of the
network. Without oneDNN nothing changes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.heads import LMHead
from stemma.network.initialization import Linear
from stemma.network.network import Network
from stemma.network.views import eval_view, inference_view

MIN_ROWS = 3  # with one or two rows the plain layout is as fast


class PrepackedProduct:
    """x -> x @ weight.T + bias, with a prepacked weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int):
        self.weight, self.bias = weight, bias
        self.prepacked_weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[:-1].numel() < MIN_ROWS:
            return functional.linear(x, self.weight, self.bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.prepacked_weight, self.bias, "none", [], "")
        return product


class PrepackedLinear(nn.Linear):
    """A linear layer of a view: the network's parameters, with a prepacked copy for the product."""

    product: PrepackedProduct

    def forward(self, input: Tensor) -> Tensor:
        return self.product(input)


class PrepackedLMHead(LMHead):
    """A language-modeling head with a prepacked copy of the output matrix."""

    product: PrepackedProduct

    def forward(self, hidden: Tensor) -> Tensor:
        return self.cap(self.product(self.transform(hidden)))


def prepacked_view(network: Network, rows: int) -> Network:
    """The network in eval mode, with prepacked weights if that is faster for this number of rows. The weights must not
    change while the view is in use."""
    if rows < MIN_ROWS or not _is_supported(network):
        return eval_view(network)

    def replace(module: nn.Module) -> nn.Module | None:
        # exact classes only: a subclass may compute something else
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
    """Whether this torch has the operators. They are internal to torch.compile, so they may change."""
    plain = all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in network.parameters())
    if not plain or not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    try:
        probe = PrepackedProduct(torch.ones(16, 16), torch.zeros(16), MIN_ROWS)
        return bool((probe(torch.ones(MIN_ROWS, 16)) == 16).all())
    except (AttributeError, RuntimeError):
        return False
