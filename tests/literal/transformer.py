"""A Transformer encoder from the formulas of arXiv:1706.03762, head by head and query by query, in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Weights = dict[str, np.ndarray]
Sees = Callable[[int, int], bool]  # may the query at this place look at the key at that place?


def linear(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def layer_norm(x: np.ndarray, weights: Weights, name: str, epsilon: float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def attention(query: np.ndarray, key: np.ndarray, value: np.ndarray, sees: Sees) -> np.ndarray:
    """(Q, D), (K, D), (K, D) -> (Q, D): softmax(QK^T / sqrt(D)) V over the keys that each query sees."""
    mixed = []
    for q in range(len(query)):
        seen = [k for k in range(len(key)) if sees(q, k)]
        weights = softmax(np.array([query[q] @ key[k] / math.sqrt(len(query[q])) for k in seen]))
        mixed.append(sum(weight * value[k] for weight, k in zip(weights, seen, strict=True)))
    return np.array(mixed)


def self_attention(x: np.ndarray, weights: Weights, name: str, heads: int, sees: Sees) -> np.ndarray:
    query, key, value = np.split(linear(x, weights, f"{name}.input"), 3, axis=-1)
    parts = [attention(*(np.split(each, heads, axis=-1)[head] for each in (query, key, value)), sees)
             for head in range(heads)]
    return linear(np.concatenate(parts, axis=-1), weights, f"{name}.output")


def encoder(x: np.ndarray, weights: Weights, settings: Any, sees: Sees) -> np.ndarray:
    """(L, width) of one example through every layer; `settings` are a recipe's network settings."""
    epsilon, pre = settings.norm.epsilon, settings.norm.place == "pre"
    for layer in range(settings.layers):
        block = f"encoder.blocks.{layer}"
        for name in ("attention", "feedforward"):
            place = f"{block}.{name}"
            y = layer_norm(x, weights, f"{place}_norm", epsilon) if pre else x
            if name == "attention":
                y = self_attention(y, weights, place, settings.heads, sees)
            else:
                y = linear(gelu(linear(y, weights, f"{place}.input")), weights, f"{place}.output")
            x = x + y if pre else layer_norm(x + y, weights, f"{place}_norm", epsilon)
    return layer_norm(x, weights, "encoder.final_norm", epsilon) if pre else x


def sinusoid(place: int, width: int) -> list[float]:
    """PE(place, 2i) = sin(place / 10000^(2i/width)), PE(place, 2i+1) = cos of the same."""
    return [(math.cos if column % 2 else math.sin)(place / 10_000 ** ((column - column % 2) / width))
            for column in range(width)]
