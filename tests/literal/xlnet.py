"""XLNet's two-stream attention as arXiv:1906.08237 writes it: one sequence, layer by layer, head by head, pair by pair.

Section 2.3: the content stream h has the token and its position; the query stream g, which starts from one learned
vector, has only the position. Both use the same weights, and both take keys and values from the content stream. `order`
has the rank of each position in the factorisation order z: content i attends to j if order[j] <= order[i], query i if
order[j] < order[i]. Positions that are never predicted may have equal ranks. All positions attend to the memory. A
query without any key is an error here; transformers then returns the mean of all values.

Section 2.4 takes memory and relative positions from Transformer-XL. Distances i - j now have both signs, and are
negated in rows that are read backwards. Section 2.5 adds a score for "same segment" or "different segment". Memory
counts as segment 0. Without segments that score is left out, which differs from "all the same segment".

Weights are one dictionary of tensors; matrices are (out, in), so y = W x. With n the index of a layer:
    n.query, n.key, n.value, n.relative   (heads * head_width, width)      no biases anywhere in the attention
    n.output                              (width, heads * head_width)
    n.u, n.v                              (heads, head_width)              for content and for distance, as in XL
    n.segment_bias, n.same, n.different   (heads, head_width)              b, s+, s- of section 2.5
    n.attention_norm, n.feedforward_norm  (width,), and each with its _bias
    n.inner (inner, width), n.outer (width, inner), and each with its _bias
    mask                                  (width,)                         w: the initial query state
    table                                 (words, width): embedding, tied to the output; `bias` (words,)
"""

from __future__ import annotations

import math

import torch
from literal.transformer_xl import Memory, Weights, layer_norm, sinusoid
from torch import Tensor


def gelu(x: Tensor) -> Tensor:
    """The tanh approximation of the authors' modeling.py."""
    return x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attention(queries: Tensor, positions: list[int], is_query_stream: bool, content: Tensor, memory: Tensor,
              weights: Weights, layer: int, heads: int, order: list[int], segments: list[int] | None,
              present: list[bool], backward: bool, clamp: int | None) -> Tensor:
    """One stream: `queries` (n, width) are at `positions`; the query stream does not attend to its own position."""
    keys_input = torch.cat([memory, content])
    memory_size, width = len(memory), content.shape[1]
    query, key, value, relative, output, u, v, bias, same, different = (
        weights[f"{layer}.{name}"] for name in
        ("query", "key", "value", "relative", "output", "u", "v", "segment_bias", "same", "different"))
    size = query.shape[0] // heads

    def attends(i: int, j: int) -> bool:
        """Whether i attends to j, both in the segment; a padding position is attended to only by itself."""
        if i == j:
            return not is_query_stream
        return present[j] and (order[j] < order[i] if is_query_stream else order[j] <= order[i])

    result = []
    for row, i in zip(queries, positions, strict=True):
        attended = [j for j in range(memory_size + len(content)) if j < memory_size or attends(i, j - memory_size)]
        if not attended:
            raise ValueError(f"the query at position {i} attends to nothing")
        parts = []
        for head in range(heads):
            rows = slice(head * size, (head + 1) * size)
            q = query[rows] @ row
            scores, values = [], []
            for j in attended:
                distance = memory_size + i - j
                if clamp is not None:
                    distance = max(-clamp, min(distance, clamp))
                r = sinusoid(-distance if backward else distance, width, content.dtype)
                score = (q + u[head]) @ (key[rows] @ keys_input[j]) + (q + v[head]) @ (relative[rows] @ r)
                if segments is not None:
                    segment = 0 if j < memory_size else segments[j - memory_size]
                    score = score + (q + bias[head]) @ (same if segment == segments[i] else different)[head]
                scores.append(score / math.sqrt(size))
                values.append(value[rows] @ keys_input[j])
            probabilities = torch.softmax(torch.stack(scores), dim=0)
            parts.append(sum(probability * value_vector
                             for probability, value_vector in zip(probabilities, values, strict=True)))
        result.append(output @ torch.cat(parts))
    return torch.stack(result)


def after_attention(x: Tensor, attended: Tensor, weights: Weights, layer: int, epsilon: float) -> Tensor:
    """The layers after attention, in either stream: norm, feed-forward, norm."""
    rows = []
    for old, new in zip(x, attended, strict=True):
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
    """The last content states (L, width), the last query states (targets, width), and the new memory.

    `memory` has one entry per layer, (positions, width), maybe empty. The new memory has the newest `memory_length`
    positions of the old memory followed by the first `reuse` (default: all) inputs of each layer. Without `order`
    attention is bidirectional (fine-tuning); without `targets` there is no query stream.
    """
    order = order or [0] * len(ids)
    present = present or [True] * len(ids)
    h = weights["table"][torch.tensor(ids)]
    g = None if targets is None else torch.stack([weights["mask"]] * len(targets))
    new_memory = []
    for layer, layer_memory in enumerate(memory):
        inputs = torch.cat([layer_memory, h[:reuse]])
        new_memory.append(inputs[max(0, len(inputs) - memory_length):])
        common = (h, layer_memory, weights, layer, heads, order, segments, present, backward, clamp)
        attended_h = attention(h, list(range(len(ids))), False, *common)
        if g is not None and targets is not None:
            g = after_attention(g, attention(g, targets, True, *common), weights, layer, epsilon)
        h = after_attention(h, attended_h, weights, layer, epsilon)
    return h, g, new_memory


def logits(states: Tensor, weights: Weights) -> Tensor:
    return torch.stack([weights["table"] @ state + weights["bias"] for state in states])
