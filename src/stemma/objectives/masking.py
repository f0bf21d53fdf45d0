"""Choosing what to hide: whole units, at an exact overall rate, all rows at once.

Each row hides a share of its text. Units are taken in random order until the share is reached; the unit that would
step over it is taken with just the probability that keeps the expected number of hidden tokens exact.
"""

from __future__ import annotations

import numpy as np

from stemma.corpus.draft import Draft
from stemma.corpus.randomness import Randomness


def choose_tokens(draft: Draft, rate: float, rng: Randomness) -> np.ndarray:
    """(rows, length) bool: every row hides its share of single tokens, at least one."""
    text = draft.text
    wanted = _share(text.sum(1), rate, rng)
    keys = np.where(text, rng.random(text.shape), 2.0)  # special tokens come last, and are never reached
    order = np.argsort(keys, axis=1)
    chosen = np.zeros(text.shape, dtype=bool)
    np.put_along_axis(chosen, order, np.arange(text.shape[1]) < wanted[:, None], axis=1)
    return chosen


def choose_words(draft: Draft, rate: float, rng: Randomness) -> np.ndarray:
    """(rows, length) bool: every piece of a chosen word, or none of it."""
    return choose_units(draft.words, rate, rng)


def choose_units(units: np.ndarray, rate: float, rng: Randomness) -> np.ndarray:
    """`units` (rows, length): equal numbers (unique over the batch) are one unit; -1 is never chosen."""
    text = units >= 0
    rows, length = units.shape
    uniform = rng.random((rows, length + 1))
    flat = units[text]
    count = int(flat.max()) + 1 if len(flat) else 0
    if not count:
        return np.zeros(units.shape, dtype=bool)
    size = np.bincount(flat, minlength=count)
    row = np.zeros(count, dtype=np.int64)
    key = np.zeros(count)
    places = np.nonzero(text)
    row[flat] = places[0]
    key[flat] = uniform[:, :length][text]  # any one of its tokens' numbers serves the unit
    order = np.lexsort((key, row))
    order = order[size[order] > 0]
    ended = np.cumsum(size[order])
    first = np.searchsorted(row[order], np.arange(rows))
    before_row = np.concatenate([[0], ended])[first]
    ended = ended - before_row[row[order]]  # tokens hidden in this row once this unit is taken too
    begun = ended - size[order]
    wanted = np.maximum(text.sum(1) * rate, np.minimum(1, text.sum(1)))[row[order]]
    over = (wanted - begun) / size[order]  # the share of this unit that still fits
    taken = (over >= 1) | ((over > 0) & (uniform[:, length][row[order]] < over))
    picked = np.zeros(count + 1, dtype=bool)  # the last entry answers for -1
    picked[order] = taken
    none = ~np.isin(np.arange(rows), row[order][taken]) & text.any(1)
    picked[order[first[none]]] = True  # a row with text always has something to guess
    return picked[units]


def _share(counts: np.ndarray, rate: float, rng: Randomness) -> np.ndarray:
    """counts x rate, rounded up or down at random so that the mean is exact; at least one where there is text."""
    exact = counts * rate
    floor = np.floor(exact)
    share = floor + (rng.random((len(counts), 1))[:, 0] < exact - floor)
    return np.minimum(np.maximum(share, 1), counts).astype(np.int64)
