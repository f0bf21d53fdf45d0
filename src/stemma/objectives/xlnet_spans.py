"""Choosing targets in spans, as XLNet's authors do (arXiv:1906.08237): a walk along the text that takes a few whole
units, leaves some context, and so on; single tokens make up what is missing to an exact number. All rows walk at once.
"""

from __future__ import annotations

import numpy as np

from stemma.corpus.rng import RNG


def choose_spans(units: np.ndarray, start: np.ndarray, stop: np.ndarray, num_targets: np.ndarray,
                 tokens_per_target: int, max_span_units: int,
                 rng: RNG) -> np.ndarray:
    """(rows, length) bool: just `goal` tokens of each row, between its places `start` and `stop`. `units` (rows,
    length): neighbours of one number are one unit; -1 is never chosen."""
    rows, length = units.shape
    steps = length // (tokens_per_target + 1) + 1  # no walk is longer
    place = np.arange(length)
    free = (units >= 0) & (place >= start[:, None]) & (place < stop[:, None])
    walked = sample_spans(units, start, stop, num_targets, tokens_per_target, max_span_units,
                          rng.random((rows, steps, 2))) & free
    walked &= np.cumsum(walked, axis=1) <= num_targets[:, None]  # the last span may have gone too far
    keys = np.where(free & ~walked, rng.random((rows, length)), 2.0)  # what is not free is never reached
    singles = np.zeros(units.shape, dtype=bool)
    missing = num_targets - walked.sum(1)
    np.put_along_axis(singles, np.argsort(keys, axis=1), place < missing[:, None], axis=1)
    return walked | singles


def sample_spans(units: np.ndarray, start: np.ndarray, stop: np.ndarray, num_targets: np.ndarray,
                 tokens_per_target: int, max_span_units: int,
         uniform: np.ndarray) -> np.ndarray:
    """(rows, length) bool: spans of n units, n from 1 to `longest` with probability ~ 1/n, each at random within n x
    `context` tokens of context around it; until a row's end or its `goal` is reached."""
    rows, length = units.shape
    everyone = np.arange(rows)
    begins = np.ones((rows, length + 1), dtype=bool)  # a unit begins, or the row ends
    begins[:, 1:length] = (units[:, 1:] != units[:, :-1]) | (units[:, 1:] < 0)
    begins[everyone, start] = True
    number = np.cumsum(begins, axis=1) - 1  # of the unit that a place belongs to
    beginning = np.full((rows, length + 2 + max_span_units), length)  # of each unit
    row, place = np.nonzero(begins)
    beginning[row, number[row, place]] = place
    upcoming = np.where(begins, number, number + 1)  # the first unit that begins here or later
    known = np.concatenate([np.zeros((rows, 1), dtype=np.int64), np.cumsum(units >= 0, axis=1)], axis=1)

    shares = 1 / np.arange(1, max_span_units + 1)
    sizes = 1 + np.searchsorted(np.cumsum(shares / shares.sum())[:-1], uniform[:, :, 0], side="right")
    edges = np.zeros((rows, length + 1), dtype=np.int64)  # +1 where a span begins, -1 where it ends
    at, left = start.copy(), num_targets.copy()
    walking = everyone[(at < stop) & (left > 0)]
    for step in range(uniform.shape[1]):
        size = np.minimum(sizes[walking, step], left[walking])
        before = (uniform[walking, step, 1] * size * tokens_per_target).astype(np.int64)
        unit = upcoming[walking, np.minimum(at[walking] + before, length)]
        begin, end = beginning[walking, unit], beginning[walking, unit + size]
        fits = end < stop[walking]
        walking, begin, end = walking[fits], begin[fits], end[fits]
        edges[walking, begin] += 1
        edges[walking, end] -= 1
        at[walking] = end + (size * tokens_per_target - before)[fits]
        left[walking] -= known[walking, end] - known[walking, begin]
        walking = walking[(at[walking] < stop[walking]) & (left[walking] > 0)]
    return np.cumsum(edges, axis=1)[:, :length] > 0
