"""A decoder looks at what the encoder made of its text (arXiv:1706.03762, section 3.2.3).

Queries come from the decoder, keys and values from the encoder's output. While a text is written these stay the same
for every token, so they are made once and kept (`Across`).
"""

from __future__ import annotations

from torch import Tensor, nn

from stemma.network.attention.full import attend, split_heads
from stemma.network.streams import Context


class CrossAttention(nn.Module):
    joined = {"input": 2}

    def __init__(self, width: int, heads: int, head_width: int | None = None, dropout: float = 0.0, bias: bool = True,
                 scale: bool = True):
        super().__init__()
        self.heads = heads
        self.head_width = head_width or width // heads
        self.dropout = dropout
        self.scale = None if scale else 1.0
        inner = heads * self.head_width
        self.query = nn.Linear(width, inner, bias)
        self.input = nn.Linear(width, 2 * inner, bias)  # key and value, in this order
        self.output = nn.Linear(inner, width, bias)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        across = context.across
        assert across is not None, "a decoder needs something to look at"
        (query,) = split_heads(self.query(x), 1, self.heads)
        key, value = across.kept(context.layer, lambda output: split_heads(self.input(output), 2, self.heads))
        mixed = attend(query, key, value, across.mask, self.dropout if self.training else 0.0, scale=self.scale)
        return self.output(mixed.transpose(1, 2).flatten(2))
