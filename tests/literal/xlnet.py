"""XLNet's two-stream attention as arXiv:1906.08237 writes it: one sequence, layer by layer, head by head, pair by pair.

Section 2.3: the content stream h knows the word at its place, the query stream g, which starts from one learned vector,
knows only the place. Both use the same weights, and both take keys and values from the content stream. Who sees whom is
told by `order`, a number for each place, its turn in the factorisation order z: content i sees j if order[j] <=
order[i], query i if order[j] < order[i]; equal numbers are one turn (places that are never predicted). Memory is seen
by everyone. A query that sees nothing has no answer, here an error; transformers gives the mean of all values then.

Section 2.4 takes memory and relative positions from Transformer-XL, where distances now have both signs: i - j, negated
in rows that are read backwards. Section 2.5 adds a score for "same segment" or "different segment", never for which
one. Memory counts as segment 0. Without segments that score is left out altogether, which is not "all the same".

Weights are one dictionary of tensors; matrices are (out, in), so y = W x. With n the number of a layer:
    n.query, n.key, n.value, n.relative   (heads * head_width, width)      no biases anywhere in the attention
    n.output                              (width, heads * head_width)
    n.u, n.v                              (heads, head_width)              for contents and for distances, as in XL
    n.segment_bias, n.same, n.different   (heads, head_width)              b, s+, s- of section 2.5
    n.attention_norm, n.feedforward_norm  (width,), and each with its _bias
    n.inner (inner, width), n.outer (width, inner), and each with its _bias
    mask                                  (width,)                         w: where every query starts
    table                                 (words, width), not scaled; `bias` (words,) for the output, tied to it
"""

from __future__ import annotations

import math

import torch
from literal.transformer_xl import Memory, Weights, layer_norm, sinusoid
from torch import Tensor


def gelu(x: Tensor) -> Tensor:
    """As the authors' modeling.py writes it: by a tanh, not by the error function."""
    return x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attention(asking: Tensor, places: list[int], strict: bool, content: Tensor, memory: Tensor, weights: Weights,
              layer: int, heads: int, order: list[int], segments: list[int] | None, present: list[bool],
              backward: bool, clamp: int | None) -> Tensor:
    """One stream: `asking` (n, width) stands at `places`; `strict` is the query stream, which must not see itself."""
    seen_from = torch.cat([memory, content])
    past, width = len(memory), content.shape[1]
    query, key, value, relative, output, u, v, bias, same, different = (
        weights[f"{layer}.{name}"] for name in
        ("query", "key", "value", "relative", "output", "u", "v", "segment_bias", "same", "different"))
    size = query.shape[0] // heads

    def sees(i: int, j: int) -> bool:
        """Places of the segment; padding is seen by nobody but itself."""
        if i == j:
            return not strict
        return present[j] and (order[j] < order[i] if strict else order[j] <= order[i])

    result = []
    for row, i in zip(asking, places, strict=True):
        seen = [j for j in range(past + len(content)) if j < past or sees(i, j - past)]
        if not seen:
            raise ValueError(f"the query at position {i} attends to nothing")
        parts = []
        for head in range(heads):
            rows = slice(head * size, (head + 1) * size)
            q = query[rows] @ row
            scores, values = [], []
            for j in seen:
                distance = past + i - j
                if clamp is not None:
                    distance = max(-clamp, min(distance, clamp))
                r = sinusoid(-distance if backward else distance, width, content.dtype)
                score = (q + u[head]) @ (key[rows] @ seen_from[j]) + (q + v[head]) @ (relative[rows] @ r)
                if segments is not None:
                    segment = 0 if j < past else segments[j - past]
                    score = score + (q + bias[head]) @ (same if segment == segments[i] else different)[head]
                scores.append(score / math.sqrt(size))
                values.append(value[rows] @ seen_from[j])
            shares = torch.softmax(torch.stack(scores), dim=0)
            parts.append(sum(share * each for share, each in zip(shares, values, strict=True)))
        result.append(output @ torch.cat(parts))
    return torch.stack(result)


def finished(x: Tensor, mixed: Tensor, weights: Weights, layer: int, epsilon: float) -> Tensor:
    """What follows the attention in either stream: norm, feed-forward, norm."""
    rows = []
    for old, new in zip(x, mixed, strict=True):
        a = layer_norm(old + new, weights[f"{layer}.attention_norm"], weights[f"{layer}.attention_norm_bias"], epsilon)
        inner = gelu(weights[f"{layer}.inner"] @ a + weights[f"{layer}.inner_bias"])
        outer = weights[f"{layer}.outer"] @ inner + weights[f"{layer}.outer_bias"]
        rows.append(layer_norm(a + outer, weights[f"{layer}.feedforward_norm"],
                               weights[f"{layer}.feedforward_norm_bias"], epsilon))
    return torch.stack(rows)


def two_streams(ids: list[int], memory: Memory, weights: Weights, heads: int, order: list[int] | None = None,
                targets: list[int] | None = None, segments: list[int] | None = None, present: list[bool] | None = None,
                backward: bool = False, clamp: int | None = None, memory_length: int = 0, reuse: int | None = None,
                epsilon: float = 1e-12) -> tuple[Tensor, Tensor | None, Memory]:
    """The last content states (L, width), the last query states (targets, width), and the memory that is left.

    `memory` has one entry a layer, (places, width), maybe empty. The memory left is the newest `memory_length` places
    of the old memory followed by the first `reuse` places (all by default) of what enters each layer. Without `order`
    everyone sees everyone (fine-tuning); without `targets` there is no query stream.
    """
    order = order or [0] * len(ids)
    present = present or [True] * len(ids)
    h = weights["table"][torch.tensor(ids)]
    g = None if targets is None else torch.stack([weights["mask"]] * len(targets))
    left = []
    for layer, remembered in enumerate(memory):
        kept = torch.cat([remembered, h[:reuse]])
        left.append(kept[max(0, len(kept) - memory_length):])
        common = (h, remembered, weights, layer, heads, order, segments, present, backward, clamp)
        mixed_h = attention(h, list(range(len(ids))), False, *common)
        if g is not None and targets is not None:
            g = finished(g, attention(g, targets, True, *common), weights, layer, epsilon)
        h = finished(h, mixed_h, weights, layer, epsilon)
    return h, g, left


def logits(states: Tensor, weights: Weights) -> Tensor:
    return torch.stack([weights["table"] @ state + weights["bias"] for state in states])
