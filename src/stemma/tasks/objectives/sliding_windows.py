"""A text that is longer than a row is read in several that overlap, and each of its tokens is judged where most of its
neighbours are in sight."""

from __future__ import annotations

import numpy as np


def split_windows(length: int, window_size: int, stride: int) -> list[tuple[int, int]]:
    """[start, stop) of the rows that cover so many tokens: `room` at a time, each `step` tokens on from the last."""
    if length <= window_size:
        return [(0, length)]
    starts = range(0, length - window_size + stride, max(1, stride))
    return [(start, min(start + window_size, length)) for start in starts]


def max_context_window(length: int, windows: list[tuple[int, int]]) -> np.ndarray:
    """(length,) the window in which each token has the most context, on the side where it has less of it; of equally
    good ones the first."""
    owner, most = np.zeros(length, np.int64), np.full(length, -1)
    for number, (start, stop) in enumerate(windows):
        place = np.arange(start, stop)
        context = np.minimum(place - start, stop - 1 - place)
        better = place[context > most[start:stop]]
        owner[better], most[better] = number, context[better - start]
    return owner
