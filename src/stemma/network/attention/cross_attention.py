"""A decoder looks at what the encoder made of its text (arXiv:1706.03762, section 3.2.3).

Queries come from the decoder, keys and values from the encoder's output. While a text is written these stay the same
for every token, so they are made once and kept (`CrossAttentionCache`).
"""

from __future__ import annotations

from torch import Tensor

from stemma.network.attention.self_attention import attend, attend_with_scores, query_initializer, split_heads
from stemma.network.initialization import Linear, default_initializer, output_initializer
from stemma.network.inputs_outputs import LayerContext
from stemma.network.module import TensorModule
from stemma.schema.network import NetworkSettings
from stemma.visibility import CompiledMask


class CrossAttention(TensorModule):
    fused_matrices = {"input": 2}

    def __init__(self, settings: NetworkSettings):
        super().__init__()
        chosen, width, self.heads = settings.attention, settings.width, settings.heads
        self.head_width = chosen.head_width or width // self.heads
        self.dropout = chosen.dropout
        self.scale = None if chosen.scale else 1.0
        inner, usual = self.heads * self.head_width, default_initializer(settings, width)
        self.query = Linear(width, inner, chosen.bias, query_initializer(settings))
        self.input = Linear(width, 2 * inner, chosen.bias, usual)  # key and value, in this order
        self.output = Linear(inner, width, chosen.bias, output_initializer(settings, inner))

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        query, key, value, mask = self._query_key_value(x, context)
        mixed = attend(query, key, value, mask, self.dropout if self.training else 0.0, scale=self.scale)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def forward_with_scores(self, x: Tensor, context: LayerContext) -> tuple[Tensor, Tensor]:
        """The same, and the scores before their softmax, (B, heads, Q, K)."""
        query, key, value, mask = self._query_key_value(x, context)
        mixed, scores = attend_with_scores(query, key, value, mask, self.dropout if self.training else 0.0, None,
                                        self.scale)
        return self.output(mixed.transpose(1, 2).flatten(2)), scores

    def _query_key_value(self, x: Tensor, context: LayerContext) -> tuple[Tensor, Tensor, Tensor, CompiledMask]:
        across = context.cross_cache
        assert across is not None, "a decoder needs something to look at"
        (query,) = split_heads(self.query(x), 1, self.heads)
        key, value = across.keys_and_values(context.layer_index, self.keys_and_values)
        return query, key, value, across.mask

    def keys_and_values(self, encoder_output: Tensor) -> tuple[Tensor, ...]:
        """(B, S, width) the encoder's output -> two of (B, heads, S, D)"""
        return split_heads(self.input(encoder_output), 2, self.heads)
