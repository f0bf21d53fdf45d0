"""Two linear maps with a bend between them, at every place alike (arXiv:1706.03762, section 3.3)."""

from __future__ import annotations

from torch import Tensor, nn

from stemma.network.activation import ACTIVATIONS
from stemma.network.streams import Context


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int, activation: str):
        super().__init__()
        self.input = nn.Linear(width, inner)
        self.output = nn.Linear(inner, width)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return self.output(self.activation(self.input(x)))
