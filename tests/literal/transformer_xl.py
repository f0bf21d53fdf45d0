"""Transformer-XL as section 3 of arXiv:1901.02860 writes it: one sequence, layer by layer, head by head, pair by pair.

Weights are one dictionary of tensors; matrices are (out, in), so y = W x. With n the index of a layer:

    n.query, n.key, n.value   (heads * head_width, width)   W_q, W_k,E, W_v: no biases anywhere in the attention
    n.relative                (heads * head_width, width)   W_k,R: the key of a distance
    n.u, n.v                  (heads, head_width)           the two global biases; if tied, the same in every layer
    n.output                  (width, heads * head_width)
    n.attention_norm, n.attention_norm_bias, n.feedforward_norm, n.feedforward_norm_bias      (width,)
    n.inner (inner, width), n.inner_bias, n.outer (width, inner), n.outer_bias

In section 3.2 a query attends to all of the memory. With `same_length` every query attends to the same number of
positions, `memory_length`, itself included, as in the authors' PyTorch code and in transformers 4.35 (the authors'
TensorFlow code allows one position more). The paper's R is "a sinusoid encoding matrix"; the authors' code, and this
file, has all sines before all cosines. At the start of a text, memory is either empty (the authors) or zeros of full
length (transformers 4.35): zeros are attended to, so the two differ until the zeros have left the memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Weights = dict[str, Tensor]
Memory = list[Tensor]  # for each layer its inputs at earlier positions, oldest first: (positions, width)
Dropout = Callable[[str, Tensor], Tensor]  # (name of the site, tensor) -> tensor after dropout


def no_memory(layers: int, width: int, length: int = 0, dtype: torch.dtype = torch.float64) -> Memory:
    return [torch.zeros(length, width, dtype=dtype) for _ in range(layers)]


def no_dropout(site: str, x: Tensor) -> Tensor:
    """No dropout."""
    return x


def embedded(ids: Tensor, table: Tensor) -> Tensor:
    return table[ids] * math.sqrt(table.shape[1])


def layer_norm(x: Tensor, scale: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    centred = x - x.mean()
    return centred / torch.sqrt((centred**2).mean() + epsilon) * scale + bias


def sinusoid(distance: float, width: int, dtype: torch.dtype) -> Tensor:
    """R_(i-j): the sines of every frequency, then the cosines of every frequency."""
    frequencies = [10_000 ** (-2 * k / width) for k in range(width // 2)]
    return torch.tensor([math.sin(distance * frequency) for frequency in frequencies]
                        + [math.cos(distance * frequency) for frequency in frequencies], dtype=dtype)


def attention(x: Tensor, memory: Tensor, weights: Weights, layer: int, heads: int, memory_length: int,
              distances: list[Tensor], same_length: bool, drop: Dropout) -> Tensor:
    """(L, width) -> (L, width): each position attends to the memory and to the segment up to itself."""
    length, width = x.shape
    keys_input = torch.cat([memory, x])  # h~ = [SG(m) o h]: of keys and values, not of queries
    query, key, value, relative, output, u, v = (
        weights[f"{layer}.{name}"] for name in ("query", "key", "value", "relative", "output", "u", "v"))
    size = query.shape[0] // heads  # the width of one head
    result = []
    for position in range(length):
        i = len(memory) + position
        parts = []
        for head in range(heads):
            rows = slice(head * size, (head + 1) * size)
            q = query[rows] @ x[position]
            scores, values = [], []
            for j in range(i + 1):  # causal: j <= i
                distance = i - j
                if same_length and distance >= memory_length:
                    continue
                k_content, k_position = key[rows] @ keys_input[j], relative[rows] @ distances[distance]
                a = q @ k_content            # (a) content with content
                b = q @ k_position           # (b) content with distance
                c = u[head] @ k_content      # (c) global bias of a content
                d = v[head] @ k_position     # (d) global bias of a distance
                scores.append((a + b + c + d) / math.sqrt(size))
                values.append(value[rows] @ keys_input[j])
            probabilities = drop("attention", torch.softmax(torch.stack(scores), dim=0))
            parts.append(sum(probability * value_vector
                             for probability, value_vector in zip(probabilities, values, strict=True)))
        result.append(drop("attention output", output @ torch.cat(parts)))
    return torch.stack(result)


def segment(x: Tensor, memory: Memory, weights: Weights, heads: int, memory_length: int, clamp: int | None = None,
            same_length: bool = False, epsilon: float = 1e-5, drop: Dropout = no_dropout) -> tuple[Tensor, Memory]:
    """The last hidden states (L, width) of one segment, given as embeddings (L, width), and the new memory. In training
    the authors' code has dropout on the embeddings, the sinusoids (once, for all layers), the attention probabilities,
    the outputs of both sublayers, the feed-forward's inner states, and the last layer's output."""
    new_memory = []
    x = drop("embedding", x)
    max_distance = len(x) + max(map(len, memory))
    distances = [drop("positions", sinusoid(distance if clamp is None else min(distance, clamp), x.shape[1], x.dtype))
                 for distance in range(max_distance)]
    for layer, layer_memory in enumerate(memory):
        def norm(y: Tensor, name: str, layer: int = layer) -> Tensor:
            return layer_norm(y, weights[f"{layer}.{name}"], weights[f"{layer}.{name}_bias"], epsilon)

        inputs = torch.cat([layer_memory, x])
        new_memory.append(inputs[max(0, len(inputs) - memory_length):])  # the newest inputs of this layer
        attended = attention(x, layer_memory, weights, layer, heads, memory_length, distances, same_length, drop)
        rows = []
        for position in range(len(x)):
            o = norm(x[position] + attended[position], "attention_norm")
            inner = drop("inner", torch.relu(weights[f"{layer}.inner"] @ o + weights[f"{layer}.inner_bias"]))
            outer = weights[f"{layer}.outer"] @ inner + weights[f"{layer}.outer_bias"]
            rows.append(norm(o + drop("feed-forward output", outer), "feedforward_norm"))
        x = torch.stack(rows)
    return drop("output", x), new_memory
