"""Two linear maps with an activation between them, at every place alike (arXiv:1706.03762, section 3.3).

Gated, the first map gives two vectors, of which one goes through the activation and scales the other: GeGLU, SwiGLU
(arXiv:2002.05202).
"""

from __future__ import annotations

from torch import Tensor, nn

from stemma.network.activation import ACTIVATIONS
from stemma.network.dropout import Dropout
from stemma.network.streams import Context


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int, activation: str, bias: bool = True, dropout: float = 0.0):
        super().__init__()
        self.input = nn.Linear(width, inner, bias)
        self.output = nn.Linear(inner, width, bias)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return self.output(self.dropout(self.activation(self.input(x))))


class GatedFeedForward(FeedForward):
    """Its first map holds two matrices, the activated one first."""

    joined = {"input": 2}

    def __init__(self, width: int, inner: int, activation: str, bias: bool = True, dropout: float = 0.0):
        super().__init__(width, inner, activation, bias, dropout)
        self.input = nn.Linear(width, 2 * inner, bias)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        activated, gate = self.input(x).chunk(2, -1)
        return self.output(self.dropout(self.activation(activated) * gate))
