"""Multi-head self-attention under an attention mask (arXiv:1706.03762, section 3.2).

Query, key and value come from one matrix product. The kernel is torch's fused attention, with the cheapest form of the
mask. On CPU the fused kernel does not support dropout, and its backward pass in bf16 is slow for short sequences, so
training uses explicit products there.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.attention.kinds import FullAttentionSettings
from stemma.network.attention.query_key_norm import build_query_key_norm
from stemma.network.bf16_linear import linear
from stemma.network.cache import LayerKVCache
from stemma.network.disentangled_position import DisentangledPositions, position_scores
from stemma.network.dropout import Dropout, dropout_mask
from stemma.network.initialization import Initializer, Linear, default_initializer, output_initializer
from stemma.network.inputs_outputs import LayerContext
from stemma.network.module import TensorModule
from stemma.network.relative_position import RelativeAttentionScores, RelativePositions
from stemma.network.rotary import RotaryAngles
from stemma.network.unpad import UnpaddedBatch
from stemma.schema.network import NetworkSettings
from stemma.visibility import CompiledMask

MAX_EXPLICIT_KEYS = 512  # keys up to which explicit products are faster in bf16: 4x at 48 keys, 1.5x at 512


class SelfAttention(TensorModule):
    fused_matrices: dict[str, int]  # matrices stored as one; Muon orthogonalizes each of them separately

    def __init__(self, settings: NetworkSettings):
        super().__init__()
        attention, width, self.heads = settings.attention, settings.width, settings.heads
        self.scale = None if attention.scale else 1.0  # None: 1 / sqrt(head width)
        self.head_width = attention.head_width or width // self.heads
        self.dropout = attention.dropout
        inner, initializer = self.heads * self.head_width, default_initializer(settings, width)
        own = attention if isinstance(attention, FullAttentionSettings) else None
        self.gated = bool(own and own.gate)
        self.fused_matrices = {"input": 4 if self.gated else 3}
        # query, key, value and gate, in this order
        self.input = Linear(width, self.fused_matrices["input"] * inner, attention.bias, query_initializer(settings),
                            *[initializer] * (self.fused_matrices["input"] - 1))
        self.output = Linear(inner, width, attention.bias, output_initializer(settings, inner))
        self.qk_norm = build_query_key_norm(settings)
        epsilon = settings.norm.epsilon
        self.inner_norm = nn.LayerNorm(inner, epsilon, elementwise_affine=False) if own and own.inner_norm else None
        self.output_norm = nn.LayerNorm(width, epsilon) if own and own.output_norm else None
        self.position_dropout = None
        if settings.position.disentangled:  # three terms of about equal size
            self.scale = (3 * self.head_width)**-0.5 if attention.scale else 1.0
            self.position_dropout = Dropout(attention.dropout)
        self.relative = None
        if settings.position.relative:
            self.relative = RelativeAttentionScores(width, self.heads, self.head_width, attention.segments,
                                                    default_initializer(settings), initializer)

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        rotation = context.rotation
        if context.key_states is not None:
            (query,) = self.project_some(x, 0, 1, angles=None if rotation is None else rotation.query)
            key, value = self.project_some(context.key_states, 1, 3, context.unpadded,
                                           None if rotation is None else rotation.key)
            return self._project_output(self._attend(query, key, value, context), self._gate(x))
        qkv, gate = self._split_gate(self.input(x))
        if context.unpadded is None:
            return self._project_output(self._attend_fused(qkv, context), gate)
        attended = []
        for group, group_qkv in context.unpadded.padded_groups(qkv):
            group_context = replace(context, mask=group.mask(context.mask), rotation=group.rotation(rotation))
            attended.append(group.unpad(self._attend_fused(group_qkv, group_context)))
        return self._project_output(torch.cat(attended), gate)

    def forward_with_scores(self, x: Tensor, context: LayerContext) -> tuple[Tensor, Tensor]:
        """The same for a padded batch, and the scores before softmax, (B, heads, Q, K)."""
        assert context.unpadded is None
        rotation = context.rotation
        if context.key_states is not None:
            (query,) = self.project_some(x, 0, 1, angles=None if rotation is None else rotation.query)
            key, value = self.project_some(context.key_states, 1, 3, angles=None if rotation is None else rotation.key)
        else:
            query, key, value = self._split_qkv(self._split_gate(self.input(x))[0], context)
        query, key, value, bias = self._with_cache_and_bias(query, key, value, context)
        attended, scores = attend_with_scores(query, key, value, context.mask, self.dropout if self.training else 0.0,
                                              bias, self.scale)
        return self._project_output(attended.transpose(1, 2).flatten(2), self._gate(x)), scores

    def _split_gate(self, projected: Tensor) -> tuple[Tensor, Tensor | None]:
        """Query, key and value; and the gate, if there is one."""
        if not self.gated:
            return projected, None
        inner = self.heads * self.head_width
        return projected[..., :3 * inner], projected[..., 3 * inner:]

    def _gate(self, x: Tensor) -> Tensor | None:
        """The gate of these hidden states; None without gates."""
        if not self.gated:
            return None
        rows = slice(3 * self.heads * self.head_width, None)
        return linear(x, self.input.weight[rows], None if self.input.bias is None else self.input.bias[rows])

    def _project_output(self, attended: Tensor, gate: Tensor | None) -> Tensor:
        """(..., heads x D) -> (..., width): gate, norm, output projection, norm."""
        if gate is not None:
            attended = attended * functional.gelu(gate)
        output = self.output(attended if self.inner_norm is None else self.inner_norm(attended))
        return output if self.output_norm is None else self.output_norm(output)

    def fill_cache(self, cache: LayerKVCache, x: Tensor) -> None:
        """Add the keys and values of these hidden states to a cache."""
        key, value = self.project_some(x, 1, 3)
        cache.append(key, value)

    def _attend_fused(self, qkv: Tensor, context: LayerContext) -> Tensor:
        return self._attend(*self._split_qkv(qkv, context), context)

    def _split_qkv(self, qkv: Tensor, context: LayerContext) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value from one projection; query and key get the same rotation."""
        if context.rotation is None:
            query, key, value = split_heads(qkv, 3, self.heads, contiguous=self.training and self.dropout > 0)
            if self.qk_norm is not None:
                query, key = self.qk_norm(query, 0), self.qk_norm(key, 1)
        else:
            inner = self.heads * self.head_width
            query, key = self._rotate_and_normalize(qkv[..., :2 * inner], 0, 2, context.rotation.query)
            (value,) = split_heads(qkv[..., 2 * inner:], 1, self.heads)
        return query, key, value

    def _rotate_and_normalize(self, projected: Tensor, first: int, last: int,
                              angles: RotaryAngles) -> tuple[Tensor, ...]:
        """Rotated queries (0) and keys (1), with the norm of `network.attention.qk_norm` before or after the
        rotation."""
        norm = self.qk_norm
        if norm is not None and norm.before_rotation:
            parts = zip(projected.chunk(last - first, -1), range(first, last), strict=True)
            projected = torch.cat([norm(part.unflatten(-1, (self.heads, -1)), index).flatten(-2)
                                   for part, index in parts], -1)
        rotated = rotate_heads(projected, last - first, self.heads, angles)
        if norm is None or norm.before_rotation:
            return rotated
        return tuple(norm(part, index) for part, index in zip(rotated, range(first, last), strict=True))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, context: LayerContext) -> Tensor:
        """(B, heads, Q, D), keys and values -> (B, Q, heads x D)"""
        query, key, value, bias = self._with_cache_and_bias(query, key, value, context)
        attended = attend(query, key, value, context.mask, self.dropout if self.training else 0.0, bias, self.scale)
        return attended.transpose(1, 2).flatten(2)

    def _with_cache_and_bias(self, query: Tensor, key: Tensor, value: Tensor,
                             context: LayerContext) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Query, keys and values including those of the cache, and the bias of the scores."""
        if context.cache is not None:
            key, value = context.cache.append(key, value, context.reuse_length)
        bias = context.score_bias
        if self.relative is not None:
            assert isinstance(context.relative_positions, RelativePositions)
            query, bias = self.relative(query, context.relative_positions, context.different_segment, context.cache)
        if self.position_dropout is not None:
            positions = context.relative_positions
            assert isinstance(positions, DisentangledPositions) and self.scale is not None
            embedding = self.position_dropout(positions.embedding)[None]
            position_query, position_key = (part[0] for part in self.project_some(embedding, 0, 2))
            bias = self.scale * position_scores(query, key, position_query, position_key, positions.buckets)
        return query, key, value, bias

    def project_some(self, x: Tensor, first: int, last: int, unpadded: UnpaddedBatch | None = None,
                     angles: RotaryAngles | None = None) -> tuple[Tensor, ...]:
        """Projections `first` to `last` (exclusive) of query (0), key (1) and value (2); `angles` rotates the first."""
        inner = self.heads * self.head_width
        rows = slice(first * inner, last * inner)
        bias = self.input.bias[rows] if self.input.bias is not None else None
        projected = linear(x, self.input.weight[rows], bias)
        projected = projected if unpadded is None else unpadded.pad(projected)
        if angles is None:
            parts = split_heads(projected, last - first, self.heads)
            if self.qk_norm is None or first == 2:
                return parts
            return tuple(part if index == 2 else self.qk_norm(part, index) for index, part in enumerate(parts, first))
        (rotated,) = self._rotate_and_normalize(projected[..., :inner], first, first + 1, angles)
        return rotated, *(split_heads(projected[..., inner:], last - first - 1, self.heads) if last - first > 1 else ())


def query_initializer(settings: NetworkSettings) -> Initializer:
    """If scores are not scaled by 1 / sqrt(head width), the query projection starts smaller instead (T5)."""
    head_width = settings.attention.head_width or settings.width // settings.heads
    initializer = default_initializer(settings, settings.width)
    return initializer if settings.attention.scale else initializer.scaled(head_width**-0.5)


def split_heads(projected: Tensor, parts: int, heads: int, contiguous: bool = False) -> tuple[Tensor, ...]:
    """(B, L, parts x heads x D) -> `parts` tensors (B, heads, L, D). The fused kernel accepts views; explicit products
    would copy each of them, so `contiguous` copies all in one pass."""
    batch, length, width = projected.shape
    split = projected.view(batch, length, parts, heads, width // (parts * heads)).permute(2, 0, 3, 1, 4)
    return (split.contiguous() if contiguous else split).unbind(0)


def rotate_heads(projected: Tensor, parts: int, heads: int, angles: RotaryAngles) -> tuple[Tensor, ...]:
    """(B, L, parts x heads x D) -> `parts` tensors (B, heads, L, D), rotated."""
    batch, length, width = projected.shape
    rotated = angles.rotate(projected.view(batch, length, parts * heads, width // (parts * heads)))
    return rotated.view(batch, length, parts, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: CompiledMask, dropout: float, bias: Tensor | None = None,
           scale: float | None = None) -> Tensor:
    """(B, heads, Q, D), (B, heads, K, D), (B, heads, K, D) -> (B, heads, Q, D). `scale` multiplies the scores (None:
    1 / sqrt(D)), then `bias` is added."""
    if mask.band is not None and bias is None:
        return _attend_in_band(query, key, value, mask, dropout, scale)
    if query.device.type == "cpu" and (dropout or _is_slow_when_fused(query, key)):
        return attend_with_scores(query, key, value, mask, dropout, bias, scale)[0]
    if bias is None:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask.dense, dropout_p=dropout,
                                                       is_causal=mask.causal, scale=scale)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=apply_mask(bias, mask),
                                                   dropout_p=dropout, scale=scale)


def _is_slow_when_fused(query: Tensor, key: Tensor) -> bool:
    """Whether the backward pass of torch's fused attention in bf16 is slower than explicit products on CPU."""
    if not query.requires_grad or key.shape[-2] > MAX_EXPLICIT_KEYS:
        return False
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
    return dtype == torch.bfloat16


def apply_mask(bias: Tensor, mask: CompiledMask) -> Tensor:
    """The bias with the lowest finite value at masked keys. Not -inf: a row without any allowed key (padding) would
    become NaN."""
    blocked = _blocked(mask, bias)
    return bias if blocked is None else bias.masked_fill(blocked, torch.finfo(bias.dtype).min)


def attend_with_scores(query: Tensor, key: Tensor, value: Tensor, mask: CompiledMask, dropout: float,
                       bias: Tensor | None, scale: float | None) -> tuple[Tensor, Tensor]:
    """Attention by explicit products, and the masked scores before softmax, (B, heads, Q, K)."""
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * factor) @ key.transpose(-1, -2)
    if bias is not None:
        scores = scores + bias
    scores = apply_mask(scores, mask)
    weights = scores.softmax(-1)
    if dropout:
        weights = weights * dropout_mask(weights.shape, dropout, weights.dtype, weights.device)
    return weights @ value, scores


def _blocked(mask: CompiledMask, scores: Tensor) -> Tensor | None:
    """True at masked keys, broadcastable to the scores."""
    if mask.causal or mask.band is not None:
        queries, keys = scores.shape[-2:]
        mask = mask.for_queries(torch.arange(keys - queries, keys, device=scores.device)[None], keys)
    return None if mask.dense is None else ~mask.dense


def _attend_in_band(query: Tensor, key: Tensor, value: Tensor, mask: CompiledMask, dropout: float,
                    scale: float | None) -> Tensor:
    """Sliding-window attention in blocks of about the size of the window.

    A block of queries attends to its own positions, to `before` positions before it and to `after` positions after it,
    so the cost is linear in the length. Cached positions outside the window of every query are dropped."""
    assert mask.band is not None
    before, after = mask.band
    batch, heads, length, width = query.shape
    size = min(max(before, after) + 1, length)
    past = min(before, key.shape[2] - length)  # cached positions within the window of a query
    token_mask = mask.token_mask
    if token_mask is None:
        token_mask = torch.ones(1, past + length, dtype=torch.bool, device=query.device)
    key, value, token_mask = key[:, :, -past - length:], value[:, :, -past - length:], token_mask[:, -past - length:]
    num_blocks = -(-length // size)
    block_padding = num_blocks * size - length

    def blocks(x: Tensor, before: int, after: int) -> Tensor:
        """(B, heads, L, D) -> (B x num_blocks, heads, before + size + after, D): each block with its neighbours."""
        padded = functional.pad(x, (0, 0, before + length - x.shape[2], block_padding + after))
        windows = padded.unfold(2, before + size + after, size)  # (B, heads, num_blocks, D, before + size + after)
        return windows.permute(0, 2, 1, 4, 3).flatten(0, 1)

    column = torch.arange(before + size + after, device=query.device)
    offset = column - column[:size, None]  # (size, before + size + after); `before` at the query's own position
    within_band = (offset >= 0) & (offset <= before + after)
    # (B, num_blocks, len(column))
    token_mask = functional.pad(token_mask, (before - past, block_padding + after)).unfold(1, len(column), size)
    # the window of a padding position may hold only padding: it attends to itself, so that softmax is defined
    allowed = within_band & (token_mask[:, :, None] | (offset == before))  # (B, num_blocks, size, len(column))
    dense = allowed.expand(batch, -1, -1, -1).flatten(0, 1)[:, None]
    attended = attend(blocks(query, 0, 0), blocks(key, before, after), blocks(value, before, after),
                      CompiledMask(dense=dense), dropout, scale=scale)
    return attended.view(batch, num_blocks, heads, size, width).transpose(1, 2).flatten(2, 3)[:, :, :length]
