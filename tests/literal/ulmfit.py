"""ULMFiT's classification head (arXiv:1801.06146, section 3.3), one row at a time, with numpy in double precision."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def pooled(hidden: np.ndarray) -> np.ndarray:
    """(length, width) without padding: last state, maximum, mean"""
    length, width = hidden.shape
    maximum, mean = np.full(width, -np.inf), np.zeros(width)
    for position in range(length):
        for unit in range(width):
            maximum[unit] = max(maximum[unit], hidden[position, unit])
            mean[unit] += hidden[position, unit] / length
    return np.concatenate([hidden[length - 1], maximum, mean])


def normalized(rows: np.ndarray, weights: Mapping[str, np.ndarray], name: str, training: bool) -> np.ndarray:
    """Batch normalization: by the statistics of these rows in training, by the running ones otherwise."""
    mean, variance = (rows.mean(0), rows.var(0)) if training \
        else (weights[f"{name}.running_mean"], weights[f"{name}.running_var"])
    return (rows - mean) / np.sqrt(variance + 1e-5) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def logits(texts: list[np.ndarray], weights: Mapping[str, np.ndarray], training: bool) -> np.ndarray:
    """The hidden states of each text -> (texts, classes), without dropout"""
    rows = normalized(np.stack([pooled(hidden) for hidden in texts]), weights, "norm", training)
    dense = np.maximum(rows @ weights["dense.weight"].T + weights["dense.bias"], 0)
    return normalized(dense, weights, "output_norm", training) @ weights["output.weight"].T + weights["output.bias"]
