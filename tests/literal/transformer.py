"""A Transformer from the formulas of arXiv:1706.03762, head by head and query by query, in double precision.

The encoder alone, as its descendants use it, and the encoder-decoder of 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Weights = dict[str, np.ndarray]
AttentionRule = Callable[[int, int], bool]  # (query position, key position) -> whether the query attends to the key


def linear(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def layer_norm(x: np.ndarray, weights: Weights, name: str, epsilon: float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


ACTIVATIONS = {"gelu": gelu, "relu": relu}


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def attention(query: np.ndarray, key: np.ndarray, value: np.ndarray, attends: AttentionRule) -> np.ndarray:
    """(Q, D), (K, D), (K, D) -> (Q, D): softmax(QK^T / sqrt(D)) V over the keys that each query attends to."""
    result = []
    for q in range(len(query)):
        attended = [k for k in range(len(key)) if attends(q, k)]
        weights = softmax(np.array([query[q] @ key[k] / math.sqrt(len(query[q])) for k in attended]))
        result.append(sum(weight * value[k] for weight, k in zip(weights, attended, strict=True)))
    return np.array(result)


def self_attention(x: np.ndarray, weights: Weights, name: str, heads: int, attends: AttentionRule) -> np.ndarray:
    query, key, value = np.split(linear(x, weights, f"{name}.input"), 3, axis=-1)
    parts = [attention(*(np.split(matrix, heads, axis=-1)[head] for matrix in (query, key, value)), attends)
             for head in range(heads)]
    return linear(np.concatenate(parts, axis=-1), weights, f"{name}.output")


def feedforward(x: np.ndarray, weights: Weights, name: str, settings: Any) -> np.ndarray:
    activated = ACTIVATIONS[settings.activation](linear(x, weights, f"{name}.input"))
    return linear(activated, weights, f"{name}.output")


def encoder(x: np.ndarray, weights: Weights, settings: Any, attends: AttentionRule) -> np.ndarray:
    """(L, width) of one example through every layer; `settings` are a recipe's network settings."""
    epsilon, pre = settings.norm.epsilon, settings.norm.placement == "pre"
    for layer in range(settings.layers):
        block = f"encoder.blocks.{layer}"
        for name in ("attention", "feedforward"):
            sublayer = f"{block}.{name}"
            y = layer_norm(x, weights, f"{sublayer}_norm", epsilon) if pre else x
            if name == "attention":
                y = self_attention(y, weights, sublayer, settings.heads, attends)
            else:
                y = feedforward(y, weights, sublayer, settings)
            x = x + y if pre else layer_norm(x + y, weights, f"{sublayer}_norm", epsilon)
    return layer_norm(x, weights, "encoder.final_norm", epsilon) if pre else x


def sinusoid(position: int, width: int) -> list[float]:
    """PE(position, 2i) = sin(position / 10000^(2i/width)), PE(position, 2i+1) = cos of the same."""
    return [(math.cos if column % 2 else math.sin)(position / 10_000 ** ((column - column % 2) / width))
            for column in range(width)]


def embedded(ids: list[int], table: np.ndarray) -> np.ndarray:
    """sqrt(d) times the token embeddings, plus sinusoidal positions."""
    width = table.shape[1]
    return np.array([math.sqrt(width) * table[token] + sinusoid(position, width) for position, token in enumerate(ids)])


def cross_attention(x: np.ndarray, encoded: np.ndarray, weights: Weights, name: str, heads: int) -> np.ndarray:
    """Queries from the decoder, keys and values from the encoder's output, without a mask."""
    query = linear(x, weights, f"{name}.query")
    key, value = np.split(linear(encoded, weights, f"{name}.input"), 2, axis=-1)
    parts = [attention(*(np.split(matrix, heads, axis=-1)[head] for matrix in (query, key, value)), lambda q, k: True)
             for head in range(heads)]
    return linear(np.concatenate(parts, axis=-1), weights, f"{name}.output")


def encoder_decoder(source: list[int], target: list[int], weights: Weights, settings: Any) -> np.ndarray:
    """(T, vocabulary) probabilities of the token after each target token: figure 1 from bottom to top, post-norm, one
    matrix for both embeddings and the output. `source` has no padding."""
    table, epsilon = weights["embedding.tokens.weight"], settings.norm.epsilon
    encoded = encoder(embedded(source, table), weights, settings, lambda q, k: True)
    x = embedded(target, table)
    for layer in range(settings.decoder.layers):
        block = f"decoder.blocks.{layer}"
        y = self_attention(x, weights, f"{block}.attention", settings.heads, lambda q, k: k <= q)
        x = layer_norm(x + y, weights, f"{block}.attention_norm", epsilon)
        y = cross_attention(x, encoded, weights, f"{block}.cross", settings.heads)
        x = layer_norm(x + y, weights, f"{block}.cross_norm", epsilon)
        y = feedforward(x, weights, f"{block}.feedforward", settings)
        x = layer_norm(x + y, weights, f"{block}.feedforward_norm", epsilon)
    return np.array([softmax(np.array([state @ row for row in table])) for state in x])


def smoothed_loss(probabilities: np.ndarray, labels: list[int], smoothing: float) -> float:
    """Mean cross-entropy with label smoothing: 1 - smoothing for the label, and smoothing spread over all tokens."""
    total = 0.0
    for row, label in zip(probabilities, labels, strict=True):
        for token, probability in enumerate(row):
            smoothed = smoothing / len(row) + (1 - smoothing if token == label else 0)
            total -= smoothed * math.log(probability)
    return total / len(labels)
