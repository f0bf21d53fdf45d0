"""A decoder looks at what the encoder made of its text (arXiv:1706.03762, section 3.2.3).

Queries come from the decoder, keys and values from the encoder's output. While a text is written these stay the same
for every token, so they are made once and kept (`Across`).
"""

from __future__ import annotations

from torch import Tensor

from stemma.network.attention.full import attend, attend_observed, query_draw, split_heads
from stemma.network.initialization import Linear, draw_of, output_draw
from stemma.network.module import TensorModule
from stemma.network.streams import Context
from stemma.schema.network import NetworkSettings
from stemma.visibility import Mask


class CrossAttention(TensorModule):
    joined = {"input": 2}

    def __init__(self, settings: NetworkSettings):
        super().__init__()
        chosen, width, self.heads = settings.attention, settings.width, settings.heads
        self.head_width = chosen.head_width or width // self.heads
        self.dropout = chosen.dropout
        self.scale = None if chosen.scale else 1.0
        inner, usual = self.heads * self.head_width, draw_of(settings, width)
        self.query = Linear(width, inner, chosen.bias, query_draw(settings))
        self.input = Linear(width, 2 * inner, chosen.bias, usual)  # key and value, in this order
        self.output = Linear(inner, width, chosen.bias, output_draw(settings, inner))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        query, key, value, mask = self._asked(x, context)
        mixed = attend(query, key, value, mask, self.dropout if self.training else 0.0, scale=self.scale)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def observe(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """The same, and the scores before their softmax, (B, heads, Q, K)."""
        query, key, value, mask = self._asked(x, context)
        mixed, scores = attend_observed(query, key, value, mask, self.dropout if self.training else 0.0, None,
                                        self.scale)
        return self.output(mixed.transpose(1, 2).flatten(2)), scores

    def _asked(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor, Mask]:
        across = context.across
        assert across is not None, "a decoder needs something to look at"
        (query,) = split_heads(self.query(x), 1, self.heads)
        key, value = across.kept(context.layer, self.keys_and_values)
        return query, key, value, across.mask

    def keys_and_values(self, output: Tensor) -> tuple[Tensor, ...]:
        """(B, S, width) the encoder's output -> two of (B, heads, S, D)"""
        return split_heads(self.input(output), 2, self.heads)
