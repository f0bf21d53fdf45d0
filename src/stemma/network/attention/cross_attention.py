"""Cross-attention from a decoder to the encoder output (arXiv:1706.03762, section 3.2.3).

Queries come from the decoder, keys and values from the encoder output. In incremental decoding keys and values are the
same for every token, so they are computed once (`CrossAttentionCache`).
"""

from __future__ import annotations

from torch import Tensor

from stemma.network.attention.query_key_norm import build_query_key_norm
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
        attention, width, self.heads = settings.attention, settings.width, settings.heads
        self.head_width = attention.head_width or width // self.heads
        self.dropout = attention.dropout
        self.scale = None if attention.scale else 1.0  # None: 1 / sqrt(head width)
        inner = self.heads * self.head_width
        self.query = Linear(width, inner, attention.bias, query_initializer(settings))
        # key and value, in this order
        self.input = Linear(width, 2 * inner, attention.bias, default_initializer(settings, width))
        self.qk_norm = build_query_key_norm(settings)
        self.output = Linear(inner, width, attention.bias, output_initializer(settings, inner))

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        query, key, value, mask = self._query_key_value(x, context)
        attended = attend(query, key, value, mask, self.dropout if self.training else 0.0, scale=self.scale)
        return self.output(attended.transpose(1, 2).flatten(2))

    def forward_with_scores(self, x: Tensor, context: LayerContext) -> tuple[Tensor, Tensor]:
        """The same, and the scores before softmax, (B, heads, Q, K)."""
        query, key, value, mask = self._query_key_value(x, context)
        attended, scores = attend_with_scores(query, key, value, mask, self.dropout if self.training else 0.0, None,
                                              self.scale)
        return self.output(attended.transpose(1, 2).flatten(2)), scores

    def _query_key_value(self, x: Tensor, context: LayerContext) -> tuple[Tensor, Tensor, Tensor, CompiledMask]:
        cross_cache = context.cross_cache
        assert cross_cache is not None, "cross-attention needs an encoder output"
        (query,) = split_heads(self.query(x), 1, self.heads)
        query = query if self.qk_norm is None else self.qk_norm(query, 0)
        key, value = cross_cache.keys_and_values(context.layer_index, self.keys_and_values)
        return query, key, value, cross_cache.mask

    def keys_and_values(self, encoder_output: Tensor) -> tuple[Tensor, ...]:
        """(B, S, width) encoder output -> keys and values, (B, heads, S, D) each."""
        key, value = split_heads(self.input(encoder_output), 2, self.heads)
        return key if self.qk_norm is None else self.qk_norm(key, 1), value
