"""Choosing targets in spans, as XLNet's authors do (arXiv:1906.08237): a walk along the text that takes a few whole
units, leaves some context, and so on; single tokens make up what is missing to an exact number. All rows walk at once.
"""

from __future__ import annotations

import numpy as np

from stemma.corpus.randomness import Randomness


def choose_spans(units: np.ndarray, start: np.ndarray, stop: np.ndarray, goal: np.ndarray, context: int, longest: int,
                 rng: Randomness) -> np.ndarray:
    """(rows, length) bool: just `goal` tokens of each row, between its places `start` and `stop`. `units` (rows,
    length): neighbours of one number are one unit; -1 is never chosen."""
    rows, length = units.shape
    steps = length // (context + 1) + 1  # no walk is longer
    place = np.arange(length)
    free = (units >= 0) & (place >= start[:, None]) & (place < stop[:, None])
    walked = walk(units, start, stop, goal, context, longest, rng.random((rows, steps, 2))) & free
    walked &= np.cumsum(walked, axis=1) <= goal[:, None]  # the last span may have gone too far
    keys = np.where(free & ~walked, rng.random((rows, length)), 2.0)  # what is not free is never reached
    singles = np.zeros(units.shape, dtype=bool)
    missing = goal - walked.sum(1)
    np.put_along_axis(singles, np.argsort(keys, axis=1), place < missing[:, None], axis=1)
    return walked | singles


def walk(units: np.ndarray, start: np.ndarray, stop: np.ndarray, goal: np.ndarray, context: int, longest: int,
         uniform: np.ndarray) -> np.ndarray:
    """(rows, length) bool: spans of n units, n from 1 to `longest` with probability ~ 1/n, each at random within n x
    `context` tokens of context around it; until a row's end or its `goal` is reached."""
    rows, length = units.shape
    everyone = np.arange(rows)
    begins = np.ones((rows, length + 1), dtype=bool)  # a unit begins, or the row ends
    begins[:, 1:length] = (units[:, 1:] != units[:, :-1]) | (units[:, 1:] < 0)
    begins[everyone, start] = True
    number = np.cumsum(begins, axis=1) - 1  # of the unit that a place belongs to
    beginning = np.full((rows, length + 2 + longest), length)  # of each unit
    row, place = np.nonzero(begins)
    beginning[row, number[row, place]] = place
    upcoming = np.where(begins, number, number + 1)  # the first unit that begins here or later
    known = np.concatenate([np.zeros((rows, 1), dtype=np.int64), np.cumsum(units >= 0, axis=1)], axis=1)

    shares = 1 / np.arange(1, longest + 1)
    sizes = 1 + np.searchsorted(np.cumsum(shares / shares.sum())[:-1], uniform[:, :, 0], side="right")
    edges = np.zeros((rows, length + 1), dtype=np.int64)  # +1 where a span begins, -1 where it ends
    at, left = start.copy(), goal.copy()
    walking = everyone[(at < stop) & (left > 0)]
    for step in range(uniform.shape[1]):
        size = np.minimum(sizes[walking, step], left[walking])
        before = (uniform[walking, step, 1] * size * context).astype(np.int64)
        unit = upcoming[walking, np.minimum(at[walking] + before, length)]
        begin, end = beginning[walking, unit], beginning[walking, unit + size]
        fits = end < stop[walking]
        walking, begin, end = walking[fits], begin[fits], end[fits]
        edges[walking, begin] += 1
        edges[walking, end] -= 1
        at[walking] = end + (size * context - before)[fits]
        left[walking] -= known[walking, end] - known[walking, begin]
        walking = walking[(at[walking] < stop[walking]) & (left[walking] > 0)]
    return np.cumsum(edges, axis=1)[:, :length] > 0
