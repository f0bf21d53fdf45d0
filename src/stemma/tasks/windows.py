"""A text that is longer than a row is read in several that overlap, and each of its tokens is judged where most of its
neighbours are in sight."""

from __future__ import annotations

import numpy as np


def windows(length: int, room: int, step: int) -> list[tuple[int, int]]:
    """[start, stop) of the rows that cover so many tokens: `room` at a time, each `step` tokens on from the last."""
    if length <= room:
        return [(0, length)]
    starts = range(0, length - room + step, max(1, step))
    return [(start, min(start + room, length)) for start in starts]


def owners(length: int, found: list[tuple[int, int]]) -> np.ndarray:
    """(length,) the window in which each token has the most context, on the side where it has less of it; of equally
    good ones the first."""
    owner, most = np.zeros(length, np.int64), np.full(length, -1)
    for number, (start, stop) in enumerate(found):
        place = np.arange(start, stop)
        context = np.minimum(place - start, stop - 1 - place)
        better = place[context > most[start:stop]]
        owner[better], most[better] = number, context[better - start]
    return owner
