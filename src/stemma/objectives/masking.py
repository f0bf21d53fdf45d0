"""Choosing what to hide, and hiding it: whole units, at an exact overall rate, all rows at once.

Each row hides a share of its text. Units are taken in random order until the share is reached; the unit that would
step over it is taken with just the probability that keeps the expected number of hidden tokens exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stemma.corpus.draft import Draft
from stemma.corpus.rng import RNG


def choose_tokens(draft: Draft, mask_rate: float, rng: RNG, candidates: np.ndarray | None = None) -> np.ndarray:
    """(rows, length) bool: every row hides its share of single tokens, at least one; of the text, or `among` others."""
    text = draft.is_text if candidates is None else candidates
    wanted = _target_counts(text.sum(1), mask_rate, rng)
    keys = np.where(text, rng.random(text.shape), 2.0)  # special tokens come last, and are never reached
    order = np.argsort(keys, axis=1)
    chosen = np.zeros(text.shape, dtype=bool)
    np.put_along_axis(chosen, order, np.arange(text.shape[1]) < wanted[:, None], axis=1)
    return chosen


def token_units(text: np.ndarray) -> np.ndarray:
    """(rows, length): every token of the text is a unit of its own; -1 where there is none."""
    return np.where(text, np.arange(text.size).reshape(text.shape), -1)


def merge_adjacent_units(units: np.ndarray, probabilities: Sequence[float], rng: RNG) -> np.ndarray:
    """(rows, length): from the beginning of the text on, 1, 2, 3... neighbouring units made one, how many is drawn by
    the `shares`; numbered over the whole batch, -1 where there is no text. Nothing reaches over what is no text."""
    rows, length = units.shape
    text = units >= 0
    edges = np.cumsum(probabilities)[:-1]
    sizes = 1 + np.searchsorted(edges, rng.random((rows, length)), side="right")
    first = np.cumsum(sizes, axis=1) - sizes  # the unit that each new one begins with
    opens = np.zeros((rows, length), dtype=bool)
    row, number = np.nonzero(first < length)
    opens[row, first[row, number]] = True
    begins = np.ones((rows, length), dtype=bool)  # a unit begins, or a place without text stands for one
    begins[:, 1:] = (units[:, 1:] != units[:, :-1]) | ~text[:, 1:]
    begins &= np.take_along_axis(opens, np.cumsum(begins, axis=1) - 1, axis=1)
    begins[:, 1:] |= ~text[:, :-1]
    begins[:, 0] = True
    return np.where(text, np.cumsum(begins & text).reshape(text.shape) - 1, -1)


def truncated_geometric(p: float, max_words: int) -> list[float]:
    """The shares of 1, 2, 3... words in a span that ends after each word with this chance, of spans that are not longer
    (SpanBERT, arXiv:1907.10529, section 3.1: 0.2 and 10 make 3.8 words in the mean)."""
    chances = p * (1 - p) ** np.arange(max_words)
    shares: list[float] = (chances / chances.sum()).tolist()
    return shares


def restrict_units(units: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """The same units `among` these places only; a place there that belongs to none is one of its own."""
    own = units.max(initial=-1) + 1 + np.arange(units.size).reshape(units.shape)
    return np.where(candidates, np.where(units >= 0, units, own), -1)


def choose_units(units: NDArray[np.int64], mask_rate: float, rng: RNG,
                 within: np.ndarray | None = None) -> NDArray[np.bool_]:
    """`units` (rows, length): equal numbers (unique over the batch) are one unit; -1 is never chosen. Where they lie
    `within` larger ones, these are taken in random order and their units as the text runs: so the last span of a row
    may lack its end, a word of it never does, and the share is exact even where a span is longer than that."""
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
    key[flat] = broadcast_per_unit(uniform[:, :length], units if within is None else within)[text]
    order = np.lexsort((key, row))  # stable: units of one larger unit keep their order
    order = order[size[order] > 0]
    ended = np.cumsum(size[order])
    first = np.searchsorted(row[order], np.arange(rows))
    before_row = np.concatenate([[0], ended])[first]
    ended = ended - before_row[row[order]]  # tokens hidden in this row once this unit is taken too
    begun = ended - size[order]
    wanted = np.maximum(text.sum(1) * mask_rate, np.minimum(1, text.sum(1)))[row[order]]
    over = (wanted - begun) / size[order]  # the share of this unit that still fits
    taken = (over >= 1) | ((over > 0) & (uniform[:, length][row[order]] < over))
    picked = np.zeros(count + 1, dtype=bool)  # the last entry answers for -1
    picked[order] = taken
    none = ~np.isin(np.arange(rows), row[order][taken]) & text.any(1)
    picked[order[first[none]]] = True  # a row with text always has something to guess
    return picked[units]


def broadcast_per_unit(values: np.ndarray, units: np.ndarray) -> np.ndarray:
    """(rows, length) the numbers, but all places of a unit have one of theirs: that of its last place."""
    shared = np.zeros(int(units.max(initial=-1)) + 2)  # the last entry answers for -1
    text = units >= 0
    shared[units[text]] = values[text]
    return np.where(text, shared[units], values)


def replace_tokens(draft: Draft, selected: np.ndarray, mask_probability: float, random_probability: float, rng: RNG,
             units: np.ndarray | None = None) -> np.ndarray:
    """(rows, length) the draft's ids in which of the chosen the share `mask` became the mask token, the share `random`
    any other token, and the rest stayed: so the network never knows which words it may trust. What happens to a token
    happens to all of its unit, where `units` are given."""
    tokenizer = draft.corpus.tokenizer
    ordinary = tokenizer.regular_ids
    action, which = rng.random((draft.rows, 2, draft.input_ids.shape[1])).transpose(1, 0, 2)
    if units is not None:
        action = broadcast_per_unit(action, units)
    masked = selected & (action < mask_probability)
    other = selected & ~masked & (action < mask_probability + random_probability)
    ids = np.where(masked, tokenizer.special_id("mask"), draft.input_ids)
    return np.where(other, ordinary[(which * len(ordinary)).astype(np.int64)], ids).astype(np.int32)


def stochastic_round(exact: NDArray[np.float64], rng: RNG) -> NDArray[np.int64]:
    """(rows,) whole numbers: up or down at random, so that the mean is exact."""
    floor = np.floor(exact).astype(np.int64)
    return floor + (rng.random((len(exact), 1))[:, 0] < exact - floor)


def _target_counts(counts: np.ndarray, mask_rate: float, rng: RNG) -> np.ndarray:
    """counts x rate, exact in the mean; at least one where there is text."""
    return stochastic_round(counts * mask_rate, rng).clip(1, counts)


def segment_b_mask(draft: Draft) -> np.ndarray:
    """(rows, length) bool: B, and the token that ends it, so that a network which writes by filling in masks learns to
    stop (arXiv:1905.03197, section 2.4)."""
    place, begins = np.arange(draft.is_text.shape[1]), draft.segment_b_start()[:, None]
    stops = begins + draft.spans.part_lengths(1)[:, None]
    chosen: np.ndarray = (place >= begins) & (place <= stops) & (place < draft.lengths[:, None])
    return chosen
