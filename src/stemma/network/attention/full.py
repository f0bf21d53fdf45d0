"""Every place attends to every place that its visibility allows (arXiv:1706.03762, section 3.2).

Query, key and value come from one matrix product; the kernel is torch's fused attention, with the compiled mask in
whatever form is cheapest. On a CPU the fused kernel knows no dropout, so training with dropout spells the product out.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.distance import RelativeScores
from stemma.network.dropout import keep_mask
from stemma.network.ragged import Ragged
from stemma.network.rotary import Angles
from stemma.network.streams import Context
from stemma.visibility import Mask


class FullAttention(nn.Module):
    joined = {"input": 3}  # matrices in one: an optimizer that treats matrices as such takes them apart

    def __init__(self, width: int, heads: int, head_width: int | None = None, dropout: float = 0.0, bias: bool = True,
                 relative: bool = False, segments: bool = False, scale: bool = True):
        super().__init__()
        self.heads = heads
        self.scale = None if scale else 1.0  # None: by the heads' width
        self.head_width = head_width or width // heads
        self.dropout = dropout
        inner = heads * self.head_width
        self.input = nn.Linear(width, 3 * inner, bias)  # query, key and value, in this order
        self.output = nn.Linear(inner, width, bias)
        self.relative = RelativeScores(width, heads, self.head_width, segments) if relative else None

    def forward(self, x: Tensor, context: Context) -> Tensor:
        turn = context.rotation
        if context.keys is not None:
            (query,) = self.project(x, 0, 1, angles=None if turn is None else turn.query)
            key, value = self.project(context.keys, 1, 3, context.ragged, None if turn is None else turn.key)
            return self.output(self._mixed(query, key, value, context))
        packed = self.input(x)
        if context.ragged is None:
            return self.output(self._mixed_within(packed, context))
        mixed = [group.squeeze(self._mixed_within(part, replace(context, mask=group.mask(context.mask),
                                                                rotation=group.rotation(turn))))
                 for group, part in context.ragged.parts(packed)]
        return self.output(torch.cat(mixed))

    def _mixed_within(self, packed: Tensor, context: Context) -> Tensor:
        if context.rotation is None:
            query, key, value = split_heads(packed, 3, self.heads, copied=self.training and self.dropout > 0)
        else:  # a text asks itself: one angle a position for query and key alike
            inner = self.heads * self.head_width
            query, key = turned_heads(packed[..., :2 * inner], 2, self.heads, context.rotation.query)
            (value,) = split_heads(packed[..., 2 * inner:], 1, self.heads)
        return self._mixed(query, key, value, context)

    def _mixed(self, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Tensor:
        """(B, heads, Q, D), keys and values -> (B, Q, heads x D)"""
        if context.cache is not None:
            key, value = context.cache.extend(key, value, context.keep)
        bias = context.bias
        if self.relative is not None:
            assert context.distances is not None
            query, bias = self.relative(query, context.distances, context.apart, context.cache)
        mixed = attend(query, key, value, context.mask, self.dropout if self.training else 0.0, bias, self.scale)
        return mixed.transpose(1, 2).flatten(2)

    def project(self, x: Tensor, first: int, last: int, ragged: Ragged | None = None,
                angles: Angles | None = None) -> tuple[Tensor, ...]:
        """Only some of query (0), key (1) and value (2), the first of them turned by `angles`."""
        inner = self.heads * self.head_width
        chosen = slice(first * inner, last * inner)
        bias = self.input.bias[chosen] if self.input.bias is not None else None
        found = functional.linear(x, self.input.weight[chosen], bias)
        found = found if ragged is None else ragged.spread(found)
        if angles is None:
            return split_heads(found, last - first, self.heads)
        (turned,) = turned_heads(found[..., :inner], 1, self.heads, angles)
        return turned, *(split_heads(found[..., inner:], last - first - 1, self.heads) if last - first > 1 else ())


def split_heads(packed: Tensor, parts: int, heads: int, copied: bool = False) -> tuple[Tensor, ...]:
    """(B, L, parts x heads x D) -> parts of (B, heads, L, D). The fused kernel reads them where they lie; products
    would lay them out anew one by one, so for those they are `copied` in one pass."""
    batch, length, width = packed.shape
    apart = packed.view(batch, length, parts, heads, width // (parts * heads)).permute(2, 0, 3, 1, 4)
    return (apart.contiguous() if copied else apart).unbind(0)


def turned_heads(packed: Tensor, parts: int, heads: int, angles: Angles) -> tuple[Tensor, ...]:
    """(B, L, parts x heads x D) -> parts of (B, heads, L, D), turned."""
    batch, length, width = packed.shape
    turned = angles.turn(packed.view(batch, length, parts * heads, width // (parts * heads)))
    return turned.view(batch, length, parts, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask, dropout: float, bias: Tensor | None = None,
           scale: float | None = None) -> Tensor:
    """(B, heads, Q, D), (B, heads, K, D), (B, heads, K, D) -> (B, heads, Q, D); `bias` is added to the scores, which
    are multiplied by `scale` before (None: 1 / sqrt(D))."""
    if mask.band is not None and bias is None and scale is None:
        return _attend_in_band(query, key, value, mask, dropout)
    if dropout and query.device.type == "cpu":
        return _attend_with_dropout(query, key, value, mask, dropout, bias, scale)
    if bias is None:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask.dense, dropout_p=dropout,
                                                       is_causal=mask.causal, scale=scale)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=masked(bias, mask), dropout_p=dropout,
                                                   scale=scale)


def masked(bias: Tensor, mask: Mask) -> Tensor:
    """What is added to the scores, with nothing left of the keys that are not seen. Not -inf: a place that sees nobody
    (only filling) must not become NaN."""
    hidden = _hidden(mask, bias)
    return bias if hidden is None else bias.masked_fill(hidden, torch.finfo(bias.dtype).min)


def _attend_with_dropout(query: Tensor, key: Tensor, value: Tensor, mask: Mask, dropout: float,
                         bias: Tensor | None, scale: float | None) -> Tensor:
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * factor) @ key.transpose(-1, -2)  # (B, heads, Q, K)
    if bias is not None:
        scores = scores + bias
    weights = masked(scores, mask).softmax(-1)
    return (weights * keep_mask(weights.shape, dropout, weights.dtype)) @ value


def _hidden(mask: Mask, scores: Tensor) -> Tensor | None:
    """True where a key is not seen, broadcastable to the scores."""
    if mask.causal or mask.band is not None:
        queries, keys = scores.shape[-2:]
        mask = mask.at(torch.arange(queries, device=scores.device)[None], keys)
    return None if mask.dense is None else ~mask.dense


def _attend_in_band(query: Tensor, key: Tensor, value: Tensor, mask: Mask, dropout: float) -> Tensor:
    """Each place sees its neighbourhood. Cut in blocks of about that size, a block looks at itself and at so many
    places on either side of it: the cost grows with the length and not with its square."""
    assert mask.band is not None
    back, ahead = mask.band
    size = max(back, ahead) + 1
    batch, heads, length, width = query.shape
    blocks = -(-length // size)
    behind = blocks * size - length

    def cut(x: Tensor, back: int, ahead: int) -> Tensor:
        """(B, heads, L, D) -> (B x blocks, heads, back + size + ahead, D)"""
        cuts = functional.pad(x, (0, 0, back, behind + ahead)).unfold(2, back + size + ahead, size)
        return cuts.permute(0, 2, 1, 4, 3).flatten(0, 1)  # from (B, heads, blocks, D, back + size + ahead)

    place = torch.arange(back + size + ahead, device=query.device)
    away = place - place[:size, None]  # (size, back + size + ahead): from 0, the farthest seen, to the query's at back
    near = (away >= 0) & (away <= back + ahead)
    real = mask.real if mask.real is not None else torch.ones(1, length, dtype=torch.bool, device=query.device)
    real = functional.pad(real, (back, behind + ahead)).unfold(1, len(place), size)  # (B, blocks, back + size + ahead)
    # padding may have nothing but padding around it: it sees itself, so that it sees something
    seen = near & (real[:, :, None] | (away == back))  # (B, blocks, size, back + size + ahead)
    dense = seen.expand(batch, -1, -1, -1).flatten(0, 1)[:, None]
    mixed = attend(cut(query, 0, 0), cut(key, back, ahead), cut(value, back, ahead), Mask(dense=dense), dropout)
    return mixed.view(batch, blocks, heads, size, width).transpose(1, 2).flatten(2, 3)[:, :, :length]
