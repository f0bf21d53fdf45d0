"""Every place attends to every place that its visibility allows (arXiv:1706.03762, section 3.2).

Query, key and value come from one matrix product; the kernel is torch's fused attention, with the compiled mask in
whatever form is cheapest. On a CPU the fused kernel knows no dropout, so training with dropout spells the product out.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from stemma.network.cache import LayerKVCache
from stemma.network.dropout import dropout_mask
from stemma.network.initialization import Initializer, Linear, default_initializer, output_initializer
from stemma.network.inputs_outputs import LayerContext
from stemma.network.module import TensorModule
from stemma.network.relative_position import RelativeAttentionScores
from stemma.network.rotary import RotaryAngles
from stemma.network.unpad import UnpaddedBatch
from stemma.schema.network import NetworkSettings
from stemma.visibility import CompiledMask


class SelfAttention(TensorModule):
    fused_matrices = {"input": 3}  # matrices in one: an optimizer that treats matrices as such takes them apart

    def __init__(self, settings: NetworkSettings):
        super().__init__()
        chosen, width, self.heads = settings.attention, settings.width, settings.heads
        self.scale = None if chosen.scale else 1.0  # None: by the heads' width
        self.head_width = chosen.head_width or width // self.heads
        self.dropout = chosen.dropout
        inner, usual = self.heads * self.head_width, default_initializer(settings, width)
        # query, key and value, in this order
        self.input = Linear(width, 3 * inner, chosen.bias, query_initializer(settings), usual, usual)
        self.output = Linear(inner, width, chosen.bias, output_initializer(settings, inner))
        self.relative = RelativeAttentionScores(width, self.heads, self.head_width, chosen.segments,
                                                default_initializer(settings),
                                       usual) if settings.position.relative else None

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        turn = context.rotation
        if context.key_states is not None:
            (query,) = self.project_some(x, 0, 1, angles=None if turn is None else turn.query)
            key, value = self.project_some(context.key_states, 1, 3, context.unpadded,
                                           None if turn is None else turn.key)
            return self.output(self._attend(query, key, value, context))
        packed = self.input(x)
        if context.unpadded is None:
            return self.output(self._attend_fused(packed, context))
        mixed = [group.unpad(self._attend_fused(part, replace(context, mask=group.mask(context.mask),
                                                                rotation=group.rotation(turn))))
                 for group, part in context.unpadded.padded_groups(packed)]
        return self.output(torch.cat(mixed))

    def forward_with_scores(self, x: Tensor, context: LayerContext) -> tuple[Tensor, Tensor]:
        """The same, and the scores before their softmax, (B, heads, Q, K); of a batch with its padding."""
        assert context.unpadded is None
        turn = context.rotation
        if context.key_states is not None:
            (query,) = self.project_some(x, 0, 1, angles=None if turn is None else turn.query)
            key, value = self.project_some(context.key_states, 1, 3, angles=None if turn is None else turn.key)
        else:
            query, key, value = self._split_qkv(self.input(x), context)
        query, key, value, bias = self._with_cache_and_bias(query, key, value, context)
        mixed, scores = attend_with_scores(query, key, value, context.mask, self.dropout if self.training else 0.0,
                                           bias,
                                        self.scale)
        return self.output(mixed.transpose(1, 2).flatten(2)), scores

    def fill_cache(self, cache: LayerKVCache, x: Tensor) -> None:
        """Have a cache hold the keys and values of this text."""
        key, value = self.project_some(x, 1, 3)
        cache.append(key, value)

    def _attend_fused(self, qkv: Tensor, context: LayerContext) -> Tensor:
        return self._attend(*self._split_qkv(qkv, context), context)

    def _split_qkv(self, qkv: Tensor, context: LayerContext) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of a text that asks itself: one angle a position for query and key alike."""
        if context.rotation is None:
            query, key, value = split_heads(qkv, 3, self.heads, contiguous=self.training and self.dropout > 0)
        else:
            inner = self.heads * self.head_width
            query, key = rotate_heads(qkv[..., :2 * inner], 2, self.heads, context.rotation.query)
            (value,) = split_heads(qkv[..., 2 * inner:], 1, self.heads)
        return query, key, value

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, context: LayerContext) -> Tensor:
        """(B, heads, Q, D), keys and values -> (B, Q, heads x D)"""
        query, key, value, bias = self._with_cache_and_bias(query, key, value, context)
        mixed = attend(query, key, value, context.mask, self.dropout if self.training else 0.0, bias, self.scale)
        return mixed.transpose(1, 2).flatten(2)

    def _with_cache_and_bias(self, query: Tensor, key: Tensor, value: Tensor,
               context: LayerContext) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """With what a cache has kept, and with what is added to the scores."""
        if context.cache is not None:
            key, value = context.cache.append(key, value, context.reuse_length)
        bias = context.score_bias
        if self.relative is not None:
            assert context.relative_positions is not None
            query, bias = self.relative(query, context.relative_positions, context.different_segment, context.cache)
        return query, key, value, bias

    def project_some(self, x: Tensor, first: int, last: int, unpadded: UnpaddedBatch | None = None,
                angles: RotaryAngles | None = None) -> tuple[Tensor, ...]:
        """Only some of query (0), key (1) and value (2), the first of them turned by `angles`."""
        inner = self.heads * self.head_width
        chosen = slice(first * inner, last * inner)
        bias = self.input.bias[chosen] if self.input.bias is not None else None
        projected = functional.linear(x, self.input.weight[chosen], bias)
        projected = projected if unpadded is None else unpadded.pad(projected)
        if angles is None:
            return split_heads(projected, last - first, self.heads)
        (rotated,) = rotate_heads(projected[..., :inner], 1, self.heads, angles)
        return rotated, *(split_heads(projected[..., inner:], last - first - 1, self.heads) if last - first > 1 else ())


def query_initializer(settings: NetworkSettings) -> Initializer:
    """Where scores are not scaled down, queries start smaller (T5)."""
    width, usual = settings.attention.head_width or settings.width // settings.heads, default_initializer(settings,
        settings.width)
    return usual if settings.attention.scale else usual.scaled(width**-0.5)


def split_heads(projected: Tensor, parts: int, heads: int, contiguous: bool = False) -> tuple[Tensor, ...]:
    """(B, L, parts x heads x D) -> parts of (B, heads, L, D). The fused kernel reads them where they lie; products
    would lay them out anew one by one, so for those they are `copied` in one pass."""
    batch, length, width = projected.shape
    apart = projected.view(batch, length, parts, heads, width // (parts * heads)).permute(2, 0, 3, 1, 4)
    return (apart.contiguous() if contiguous else apart).unbind(0)


def rotate_heads(projected: Tensor, parts: int, heads: int, angles: RotaryAngles) -> tuple[Tensor, ...]:
    """(B, L, parts x heads x D) -> parts of (B, heads, L, D), turned."""
    batch, length, width = projected.shape
    turned = angles.rotate(projected.view(batch, length, parts * heads, width // (parts * heads)))
    return turned.view(batch, length, parts, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: CompiledMask, dropout: float, bias: Tensor | None = None,
           scale: float | None = None) -> Tensor:
    """(B, heads, Q, D), (B, heads, K, D), (B, heads, K, D) -> (B, heads, Q, D); `bias` is added to the scores, which
    are multiplied by `scale` before (None: 1 / sqrt(D))."""
    if mask.band is not None and bias is None:
        return _attend_in_band(query, key, value, mask, dropout, scale)
    if dropout and query.device.type == "cpu":
        return _attend_with_dropout(query, key, value, mask, dropout, bias, scale)
    if bias is None:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask.dense, dropout_p=dropout,
                                                       is_causal=mask.causal, scale=scale)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=apply_mask(bias, mask),
                                                   dropout_p=dropout,
                                                   scale=scale)


def apply_mask(bias: Tensor, mask: CompiledMask) -> Tensor:
    """What is added to the scores, with nothing left of the keys that are not seen. Not -inf: a place that sees nobody
    (only filling) must not become NaN."""
    blocked = _blocked(mask, bias)
    return bias if blocked is None else bias.masked_fill(blocked, torch.finfo(bias.dtype).min)


def _attend_with_dropout(query: Tensor, key: Tensor, value: Tensor, mask: CompiledMask, dropout: float,
                         bias: Tensor | None, scale: float | None) -> Tensor:
    return attend_with_scores(query, key, value, mask, dropout, bias, scale)[0]


def attend_with_scores(query: Tensor, key: Tensor, value: Tensor, mask: CompiledMask, dropout: float,
                       bias: Tensor | None,
                    scale: float | None) -> tuple[Tensor, Tensor]:
    """The same product by product, with the scores that its softmax is taken of, (B, heads, Q, K)."""
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
    """True where a key is not seen, broadcastable to the scores."""
    if mask.causal or mask.band is not None:
        queries, keys = scores.shape[-2:]
        mask = mask.for_queries(torch.arange(keys - queries, keys, device=scores.device)[None], keys)
    return None if mask.dense is None else ~mask.dense


def _attend_in_band(query: Tensor, key: Tensor, value: Tensor, mask: CompiledMask, dropout: float,
                    scale: float | None) -> Tensor:
    """Each place sees its neighbourhood. Cut in blocks of about that size, a block looks at itself and at so many
    places on either side of it: the cost grows with the length and not with its square. Of what a cache kept, no more
    is looked at than the first query sees."""
    assert mask.band is not None
    back, ahead = mask.band
    batch, heads, length, width = query.shape
    size = min(max(back, ahead) + 1, length)
    past = min(back, key.shape[2] - length)  # positions before the first query that somebody sees
    token_mask = mask.token_mask if mask.token_mask is not None else torch.ones(1, past + length, dtype=torch.bool,
                                                                                device=query.device)
    key, value, token_mask = key[:, :, -past - length:], value[:, :, -past - length:], token_mask[:, -past - length:]
    blocks = -(-length // size)
    behind = blocks * size - length

    def cut(x: Tensor, back: int, ahead: int) -> Tensor:
        """(B, heads, L, D) -> (B x blocks, heads, back + size + ahead, D), from `back` positions before it on"""
        padded = functional.pad(x, (0, 0, back + length - x.shape[2], behind + ahead))
        cuts = padded.unfold(2, back + size + ahead, size)
        return cuts.permute(0, 2, 1, 4, 3).flatten(0, 1)  # from (B, heads, blocks, D, back + size + ahead)

    place = torch.arange(back + size + ahead, device=query.device)
    offset = place - place[:size, None]  # (size, back + size + ahead): from 0, the farthest seen, to the query's at
    #                                      back
    within_band = (offset >= 0) & (offset <= back + ahead)
    # (B, blocks, len(place))
    token_mask = functional.pad(token_mask, (back - past, behind + ahead)).unfold(1, len(place), size)
    # padding may have nothing but padding around it: it sees itself, so that it sees something
    seen = within_band & (token_mask[:, :, None] | (offset == back))  # (B, blocks, size, back + size + ahead)
    dense = seen.expand(batch, -1, -1, -1).flatten(0, 1)[:, None]
    mixed = attend(cut(query, 0, 0), cut(key, back, ahead), cut(value, back, ahead), CompiledMask(dense=dense), dropout,
                   scale=scale)
    return mixed.view(batch, blocks, heads, size, width).transpose(1, 2).flatten(2, 3)[:, :, :length]
