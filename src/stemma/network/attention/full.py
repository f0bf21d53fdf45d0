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

from stemma.network.distance import RelativeScores
from stemma.network.dropout import keep_mask
from stemma.network.initialization import Draw, Linear, draw_of, output_draw
from stemma.network.module import TensorModule
from stemma.network.ragged import Ragged
from stemma.network.rotary import Angles
from stemma.network.state import LayerCache
from stemma.network.streams import Context
from stemma.schema.network import NetworkSettings
from stemma.visibility import Mask


class FullAttention(TensorModule):
    joined = {"input": 3}  # matrices in one: an optimizer that treats matrices as such takes them apart

    def __init__(self, settings: NetworkSettings):
        super().__init__()
        chosen, width, self.heads = settings.attention, settings.width, settings.heads
        self.scale = None if chosen.scale else 1.0  # None: by the heads' width
        self.head_width = chosen.head_width or width // self.heads
        self.dropout = chosen.dropout
        inner, usual = self.heads * self.head_width, draw_of(settings, width)
        # query, key and value, in this order
        self.input = Linear(width, 3 * inner, chosen.bias, query_draw(settings), usual, usual)
        self.output = Linear(inner, width, chosen.bias, output_draw(settings, inner))
        self.relative = RelativeScores(width, self.heads, self.head_width, chosen.segments, draw_of(settings),
                                       usual) if settings.position.relative else None

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

    def observe(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """The same, and the scores before their softmax, (B, heads, Q, K); of a batch with its padding."""
        assert context.ragged is None
        turn = context.rotation
        if context.keys is not None:
            (query,) = self.project(x, 0, 1, angles=None if turn is None else turn.query)
            key, value = self.project(context.keys, 1, 3, angles=None if turn is None else turn.key)
        else:
            query, key, value = self._split(self.input(x), context)
        query, key, value, bias = self._asked(query, key, value, context)
        mixed, scores = attend_observed(query, key, value, context.mask, self.dropout if self.training else 0.0, bias,
                                        self.scale)
        return self.output(mixed.transpose(1, 2).flatten(2)), scores

    def fill(self, cache: LayerCache, x: Tensor) -> None:
        """Have a cache hold the keys and values of this text."""
        key, value = self.project(x, 1, 3)
        cache.extend(key, value)

    def _mixed_within(self, packed: Tensor, context: Context) -> Tensor:
        return self._mixed(*self._split(packed, context), context)

    def _split(self, packed: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of a text that asks itself: one angle a position for query and key alike."""
        if context.rotation is None:
            query, key, value = split_heads(packed, 3, self.heads, copied=self.training and self.dropout > 0)
        else:
            inner = self.heads * self.head_width
            query, key = turned_heads(packed[..., :2 * inner], 2, self.heads, context.rotation.query)
            (value,) = split_heads(packed[..., 2 * inner:], 1, self.heads)
        return query, key, value

    def _mixed(self, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Tensor:
        """(B, heads, Q, D), keys and values -> (B, Q, heads x D)"""
        query, key, value, bias = self._asked(query, key, value, context)
        mixed = attend(query, key, value, context.mask, self.dropout if self.training else 0.0, bias, self.scale)
        return mixed.transpose(1, 2).flatten(2)

    def _asked(self, query: Tensor, key: Tensor, value: Tensor,
               context: Context) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """With what a cache has kept, and with what is added to the scores."""
        if context.cache is not None:
            key, value = context.cache.extend(key, value, context.keep)
        bias = context.bias
        if self.relative is not None:
            assert context.distances is not None
            query, bias = self.relative(query, context.distances, context.apart, context.cache)
        return query, key, value, bias

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


def query_draw(settings: NetworkSettings) -> Draw:
    """Where scores are not scaled down, queries start smaller (T5)."""
    width, usual = settings.attention.head_width or settings.width // settings.heads, draw_of(settings, settings.width)
    return usual if settings.attention.scale else usual.times(width**-0.5)


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
    if mask.band is not None and bias is None:
        return _attend_in_band(query, key, value, mask, dropout, scale)
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
    return attend_observed(query, key, value, mask, dropout, bias, scale)[0]


def attend_observed(query: Tensor, key: Tensor, value: Tensor, mask: Mask, dropout: float, bias: Tensor | None,
                    scale: float | None) -> tuple[Tensor, Tensor]:
    """The same product by product, with the scores that its softmax is taken of, (B, heads, Q, K)."""
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * factor) @ key.transpose(-1, -2)
    if bias is not None:
        scores = scores + bias
    scores = masked(scores, mask)
    weights = scores.softmax(-1)
    if dropout:
        weights = weights * keep_mask(weights.shape, dropout, weights.dtype, weights.device)
    return weights @ value, scores


def _hidden(mask: Mask, scores: Tensor) -> Tensor | None:
    """True where a key is not seen, broadcastable to the scores."""
    if mask.causal or mask.band is not None:
        queries, keys = scores.shape[-2:]
        mask = mask.at(torch.arange(keys - queries, keys, device=scores.device)[None], keys)
    return None if mask.dense is None else ~mask.dense


def _attend_in_band(query: Tensor, key: Tensor, value: Tensor, mask: Mask, dropout: float,
                    scale: float | None) -> Tensor:
    """Each place sees its neighbourhood. Cut in blocks of about that size, a block looks at itself and at so many
    places on either side of it: the cost grows with the length and not with its square. Of what a cache kept, no more
    is looked at than the first query sees."""
    assert mask.band is not None
    back, ahead = mask.band
    batch, heads, length, width = query.shape
    size = min(max(back, ahead) + 1, length)
    past = min(back, key.shape[2] - length)  # positions before the first query that somebody sees
    real = mask.real if mask.real is not None else torch.ones(1, past + length, dtype=torch.bool, device=query.device)
    key, value, real = key[:, :, -past - length:], value[:, :, -past - length:], real[:, -past - length:]
    blocks = -(-length // size)
    behind = blocks * size - length

    def cut(x: Tensor, back: int, ahead: int) -> Tensor:
        """(B, heads, L, D) -> (B x blocks, heads, back + size + ahead, D), from `back` positions before it on"""
        padded = functional.pad(x, (0, 0, back + length - x.shape[2], behind + ahead))
        cuts = padded.unfold(2, back + size + ahead, size)
        return cuts.permute(0, 2, 1, 4, 3).flatten(0, 1)  # from (B, heads, blocks, D, back + size + ahead)

    place = torch.arange(back + size + ahead, device=query.device)
    away = place - place[:size, None]  # (size, back + size + ahead): from 0, the farthest seen, to the query's at back
    near = (away >= 0) & (away <= back + ahead)
    real = functional.pad(real, (back - past, behind + ahead)).unfold(1, len(place), size)  # (B, blocks, len(place))
    # padding may have nothing but padding around it: it sees itself, so that it sees something
    seen = near & (real[:, :, None] | (away == back))  # (B, blocks, size, back + size + ahead)
    dense = seen.expand(batch, -1, -1, -1).flatten(0, 1)[:, None]
    mixed = attend(cut(query, 0, 0), cut(key, back, ahead), cut(value, back, ahead), Mask(dense=dense), dropout,
                   scale=scale)
    return mixed.view(batch, blocks, heads, size, width).transpose(1, 2).flatten(2, 3)[:, :, :length]
