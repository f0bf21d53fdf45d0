"""Two linear maps with an activation between them, at every place alike (arXiv:1706.03762, section 3.3).

Gated, the first map gives two vectors, of which one goes through the activation and scales the other: GeGLU, SwiGLU
(arXiv:2002.05202).
"""

from __future__ import annotations

from torch import Tensor

from stemma.network.activation import ACTIVATIONS
from stemma.network.dropout import Dropout
from stemma.network.initialization import Linear, draw_of, output_draw
from stemma.network.module import TensorModule
from stemma.network.streams import Context
from stemma.schema.network import NetworkSettings


class FeedForward(TensorModule):
    matrices = 1  # that stand in the first map

    def __init__(self, settings: NetworkSettings):
        super().__init__()
        width, inner = settings.width, settings.feedforward
        self.input = Linear(width, self.matrices * inner, settings.bias, draw_of(settings, width))
        self.output = Linear(inner, width, settings.bias, output_draw(settings, inner))
        self.activation = ACTIVATIONS[settings.activation]
        self.dropout = Dropout(settings.inner_dropout)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return self.output(self.dropout(self.activation(self.input(x))))


class GatedFeedForward(FeedForward):
    """Its first map holds two matrices, the activated one first."""

    joined = {"input": 2}
    matrices = 2

    def forward(self, x: Tensor, context: Context) -> Tensor:
        activated, gate = self.input(x).chunk(2, -1)
        return self.output(self.dropout(self.activation(activated) * gate))
