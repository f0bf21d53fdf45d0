"""NeoBERT (arXiv:2502.19587, section 3), one sequence, position by position and head by head, in double precision.

Pre-norm blocks with RMSNorm, rotary positions and SwiGLU; no biases, except that of the LM head:
    x <- x + W_o Attention(Norm(x)),  x <- x + W_2 (silu(W_1 Norm(x)) * W_3 Norm(x))
and a norm on the output. The LM head is one linear layer.

As in the authors' code, a rotation takes two *neighbouring* dimensions of a head as a complex number, and the rows of
the fused matrix `qkv` are, for each head in turn, its query, its key and its value.

Weights are a dictionary; matrices are (out, in), so y = W x:
    tokens (vocabulary, width), final_norm (width,), decoder (vocabulary, width), decoder_bias (vocabulary,)
    of each layer, under "0.", "1.", ...: qkv (3 x width, width), wo (width, width), w1, w3 (inner, width),
    w2 (width, inner), attention_norm, ffn_norm (width,)
"""

from __future__ import annotations

import cmath
import math

import torch
from torch import Tensor

Weights = dict[str, Tensor]
BASE = 10_000.0


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    mean_square = sum(float(value) ** 2 for value in x) / len(x)
    return x / math.sqrt(mean_square + epsilon) * weight


def rotate(x: Tensor, position: int) -> Tensor:
    """One head's vector: each pair of neighbours as a complex number, times e^(i position frequency)."""
    rotated = []
    for pair in range(len(x) // 2):
        angle = position * BASE ** (-2 * pair / len(x))
        number = complex(float(x[2 * pair]), float(x[2 * pair + 1])) * cmath.exp(1j * angle)
        rotated += [number.real, number.imag]
    return torch.tensor(rotated, dtype=x.dtype)


def attention(states: list[Tensor], weights: Weights, layer: int, heads: int) -> list[Tensor]:
    """Bidirectional attention: every position attends to all."""
    width = len(states[0]) // heads
    outputs: list[list[Tensor]] = [[] for _ in states]
    for head in range(heads):
        rows = weights[f"{layer}.qkv"][3 * width * head: 3 * width * (head + 1)]
        queries, keys, values = ([rows[part * width: (part + 1) * width] @ x for x in states] for part in range(3))
        queries, keys = ([rotate(x, position) for position, x in enumerate(vectors)] for vectors in (queries, keys))
        for position, query in enumerate(queries):
            scores = torch.stack([query @ key for key in keys]) / math.sqrt(width)
            probabilities = scores.softmax(0)
            outputs[position].append(sum(p * value for p, value in zip(probabilities, values, strict=True)))
    return [weights[f"{layer}.wo"] @ torch.cat(parts) for parts in outputs]


def feedforward(x: Tensor, weights: Weights, layer: int) -> Tensor:
    gate = weights[f"{layer}.w1"] @ x
    return weights[f"{layer}.w2"] @ (gate * torch.sigmoid(gate) * (weights[f"{layer}.w3"] @ x))


def hidden_states(ids: list[int], weights: Weights, layers: int, heads: int, epsilon: float) -> list[Tensor]:
    """The output of the encoder, after the final norm."""
    states = [weights["tokens"][token] for token in ids]
    for layer in range(layers):
        attended = attention([rms_norm(x, weights[f"{layer}.attention_norm"], epsilon) for x in states], weights,
                             layer, heads)
        states = [x + y for x, y in zip(states, attended, strict=True)]
        states = [x + feedforward(rms_norm(x, weights[f"{layer}.ffn_norm"], epsilon), weights, layer) for x in states]
    return [rms_norm(x, weights["final_norm"], epsilon) for x in states]


def logits(ids: list[int], weights: Weights, layers: int, heads: int, epsilon: float) -> Tensor:
    """(length, vocabulary)"""
    return torch.stack([weights["decoder"] @ x + weights["decoder_bias"]
                        for x in hidden_states(ids, weights, layers, heads, epsilon)])
