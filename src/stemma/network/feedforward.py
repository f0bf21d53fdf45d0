"""Two linear maps with a bend between them, at every place alike (arXiv:1706.03762, section 3.3)."""

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
