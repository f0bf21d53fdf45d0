"""Sliding windows: a long text is split into overlapping windows, and each token is predicted in the window where it
has the most context."""

from __future__ import annotations

import numpy as np


def split_windows(length: int, window_size: int, stride: int) -> list[tuple[int, int]]:
    """[start, stop) of the windows that cover `length` tokens: `window_size` tokens each, `stride` tokens apart."""
    if length <= window_size:
        return [(0, length)]
    starts = range(0, length - window_size + stride, max(1, stride))
    return [(start, min(start + window_size, length)) for start in starts]


def max_context_window(length: int, windows: list[tuple[int, int]]) -> np.ndarray:
    """(length,) index of the window in which each token has the most context, measured on its shorter side; the first
    of equally good ones."""
    best, best_context = np.zeros(length, np.int64), np.full(length, -1)
    for index, (start, stop) in enumerate(windows):
        positions = np.arange(start, stop)
        context = np.minimum(positions - start, stop - 1 - positions)
        better = positions[context > best_context[start:stop]]
        best[better], best_context[better] = index, context[better - start]
    return best
