"""Position-wise feed-forward layers: linear, activation, linear (arXiv:1706.03762, section 3.3).

The gated variant computes two vectors in the first linear layer and multiplies one by the activation of the other:
GeGLU, SwiGLU (arXiv:2002.05202).
"""

from __future__ import annotations

from torch import Tensor, nn

from stemma.network.activation import ACTIVATIONS
from stemma.network.dropout import Dropout
from stemma.network.initialization import Linear, default_initializer, output_initializer
from stemma.network.inputs_outputs import LayerContext
from stemma.network.module import TensorModule
from stemma.schema.network import NetworkSettings


class FeedForward(TensorModule):
    """Linear, activation, dropout, linear."""

    num_input_matrices = 1  # matrices in the first linear layer

    def __init__(self, settings: NetworkSettings):
        super().__init__()
        width, inner = settings.width, settings.feedforward
        self.input = Linear(width, self.num_input_matrices * inner, settings.bias, default_initializer(settings, width))
        self.output = Linear(inner, width, settings.bias, output_initializer(settings, inner))
        self.activation = ACTIVATIONS[settings.activation]
        self.dropout = Dropout(settings.inner_dropout)

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        return self.output(self.dropout(self.activation(self.input(x))))


def scale_by_depth(module: nn.Module, layer_index: int) -> None:
    """Initialize the matrices of a feed-forward layer again, smaller by 1 / sqrt(2 n) in layer n, from 1."""
    for linear in module.modules():
        if isinstance(linear, Linear):
            linear.initializers = tuple(initializer.scaled((2 * (layer_index + 1))**-0.5)
                                        for initializer in linear.initializers)
            linear.reset_parameters()


class GatedFeedForward(FeedForward):
    """GeGLU or SwiGLU. The first linear layer holds two matrices, the activated one first."""

    fused_matrices = {"input": 2}
    num_input_matrices = 2

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        activated, gate = self.input(x).chunk(2, -1)
        return self.output(self.dropout(self.activation(activated) * gate))


class NormedGatedFeedForward(GatedFeedForward):
    """The same with LayerNorm, without weights, before the second linear layer (LTG-BERT, arXiv:2303.09859; the idea
    is NormFormer's, arXiv:2110.09456)."""

    def __init__(self, settings: NetworkSettings):
        super().__init__(settings)
        self.norm = nn.LayerNorm(settings.feedforward, settings.norm.epsilon, elementwise_affine=False)

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        activated, gate = self.input(x).chunk(2, -1)
        return self.output(self.norm(self.dropout(self.activation(activated) * gate)))
