"""LTG-BERT (arXiv:2303.09859) and GPT-BERT (arXiv:2410.24159) as the papers and the authors' models define them, for
one sequence, position by position and head by head.

The encoder has no norm weights but those named below: "norm" is (x - mean) / sqrt(variance + epsilon).
    embedding   x = drop(norm(E[token]))
    attention   x + drop(branch(norm(x))), with the score of query i and key j
                (q_i . k_j + q_i . K_d + k_j . Q_d) / sqrt(3 x head width),  d = bucket(i - j)
                where Q_d, K_d are the layer's query and key projections of drop(R_d), and R_d = weighted norm of a
                learned vector. The probabilities are dropped too.
                LTG-BERT:  branch = weighted norm of the output projection
                GPT-BERT:  branch = output projection of norm(attended x gelu(gate))
    feed-forward x + drop(outer norm(inner x gelu_tanh(inner gate)))
    GPT-BERT mixes: after each of these sums, x becomes a weighted sum of the embedding and of all sums so far
    head        E (norm(drop(gelu(dense norm(x))))) + bias;  GPT-BERT drops after the norm

A dropout mask is the next of `masks`, in this order: embedding; for each layer the distances, the probabilities, the
attention branch, the feed-forward branch; the head. Without masks the model is in evaluation mode.

Weights are one dictionary; matrices are (out, in):
    tokens (vocabulary, width), distances (2 buckets - 1, width), distance_scale, distance_bias (width,)
    N.query, N.key, N.value, N.output (width, width) with _bias; N.gate with _bias (GPT-BERT)
    N.scale, N.bias (width,): the weighted norm (LTG-BERT);  N.inner, N.inner_gate, N.outer
    mix.M (M + 2,): GPT-BERT, after sublayer M;  dense, dense_bias, output_bias

GPT-BERT's two losses have the same form, -log p(token at i + 1 | output at i) + coefficient x (log Z)^2:
    causal     every i, causal attention, no masks
    masked     the i before a chosen token, bidirectional attention, chosen tokens replaced in the input
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    layers: int
    heads: int
    buckets: int
    max_distance: int
    epsilon: float
    gpt: bool = False  # GPT-BERT


def norm(x: Tensor, epsilon: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + epsilon)


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def bucket(distance: int, buckets: int, max_distance: int) -> int:
    """query - key -> -(buckets - 1) ... buckets - 1."""
    middle = buckets // 2
    size = min(abs(distance), max_distance - 1)
    if size <= middle:
        return distance
    position = math.ceil(math.log(size / middle) / math.log((max_distance - 1) / middle) * (middle - 1)) + middle
    return position if distance > 0 else -position


def logits(weights: Weights, shape: Shape, tokens: list[int], causal: bool = False,
           masks: list[Tensor] | None = None) -> Tensor:
    """(length, vocabulary)"""
    order: Iterator[Tensor] = iter(masks or [])

    def drop(x: Tensor) -> Tensor:
        return x if masks is None else x * next(order)

    epsilon = shape.epsilon
    x = drop(norm(torch.stack([weights["tokens"][token] for token in tokens]), epsilon))
    sums = [x]

    def add(x: Tensor, branch: Tensor) -> Tensor:
        total = x + branch
        if not shape.gpt:
            return total
        sums.append(total)
        mix = weights[f"mix.{len(sums) - 2}"]
        return sum((mix[index] * earlier for index, earlier in enumerate(sums)), torch.zeros_like(total))

    distances = norm(weights["distances"], epsilon) * weights["distance_scale"] + weights["distance_bias"]
    for layer in range(shape.layers):
        part = {name.removeprefix(f"{layer}."): value for name, value in weights.items()
                if name.startswith(f"{layer}.")}
        x = add(x, attention(part, shape, x, drop(distances), drop, causal))
        inside = norm(x, epsilon)
        inner = (inside @ part["inner"].T) * gelu_tanh(inside @ part["inner_gate"].T)
        x = add(x, drop(norm(inner, epsilon) @ part["outer"].T))
    hidden = gelu(norm(x, epsilon) @ weights["dense"].T + weights["dense_bias"])
    hidden = drop(norm(hidden, epsilon)) if shape.gpt else norm(drop(hidden), epsilon)
    return hidden @ weights["tokens"].T + weights["output_bias"]


def attention(part: Weights, shape: Shape, x: Tensor, distances: Tensor, drop, causal: bool) -> Tensor:
    inside, length = norm(x, shape.epsilon), len(x)

    def project(name: str, vectors: Tensor) -> Tensor:
        return vectors @ part[name].T + part[f"{name}_bias"]

    query, key, value = (project(name, inside) for name in ("query", "key", "value"))
    distance_query, distance_key = project("query", distances), project("key", distances)
    width = query.shape[1] // shape.heads
    scores = []
    for head in range(shape.heads):
        columns = slice(head * width, (head + 1) * width)
        rows = []
        for i in range(length):
            row = []
            for j in range(length):
                d = shape.buckets - 1 + bucket(i - j, shape.buckets, shape.max_distance)
                score = query[i, columns] @ key[j, columns] + query[i, columns] @ distance_key[d, columns] \
                    + key[j, columns] @ distance_query[d, columns]
                row.append(score / math.sqrt(3 * width) if j <= i or not causal else score * 0 - math.inf)
            rows.append(torch.stack(row))
        scores.append(torch.stack(rows))
    probabilities = drop(torch.stack(scores).softmax(-1))
    attended = torch.cat([probabilities[head] @ value[:, head * width:(head + 1) * width]
                          for head in range(shape.heads)], 1)
    if shape.gpt:
        return drop(project("output", norm(attended * gelu(project("gate", inside)), shape.epsilon)))
    return drop(norm(project("output", attended), shape.epsilon) * part["scale"] + part["bias"])


def next_token_loss(scores: Tensor, tokens: list[int], predicted: list[int], z_loss: float = 0.0) -> Tensor:
    """The mean over the `predicted` positions, each predicted by the scores (length, vocabulary) one earlier."""
    total = torch.zeros((), dtype=scores.dtype)
    for position in predicted:
        row = scores[position - 1]
        log_normalizer = torch.log(torch.exp(row).sum())
        total = total + log_normalizer - row[tokens[position]] + z_loss * log_normalizer * log_normalizer
    return total / len(predicted)
