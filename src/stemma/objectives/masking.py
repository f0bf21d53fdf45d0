"""Select masking units and replace their tokens, vectorized over the rows.

Units of a row are selected in random order until the masking rate is reached. The unit that would exceed it is selected
with the probability that makes the expected number of masked tokens exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stemma.corpus.draft import Draft
from stemma.corpus.rng import RNG
from stemma.objectives.adaptive_masking import AdaptiveMasking


def choose_tokens(draft: Draft, mask_rate: float, rng: RNG, candidates: np.ndarray | None = None,
                  adaptive: AdaptiveMasking | None = None) -> np.ndarray:
    """(rows, length) bool: single tokens at the masking rate, at least one per row, among the text or `candidates`;
    all equally likely, or by the weights of `adaptive`."""
    candidates = draft.is_text if candidates is None else candidates
    num_selected = _target_counts(candidates.sum(1), mask_rate, rng)
    keys = None if adaptive is None else adaptive.choose_keys(draft, rng)
    keys = np.where(candidates, rng.random(candidates.shape) if keys is None else keys, np.inf)  # special tokens last
    order = np.argsort(keys, axis=1)
    selected = np.zeros(candidates.shape, dtype=bool)
    np.put_along_axis(selected, order, np.arange(candidates.shape[1]) < num_selected[:, None], axis=1)
    return selected


def token_units(is_text: np.ndarray) -> np.ndarray:
    """(rows, length) unit ids with one unit per text token; -1 elsewhere."""
    return np.where(is_text, np.arange(is_text.size).reshape(is_text.shape), -1)


def merge_adjacent_units(units: np.ndarray, probabilities: Sequence[float], rng: RNG) -> np.ndarray:
    """(rows, length) ids of units merged from 1, 2, 3... adjacent units, a number sampled by `probabilities`. Ids are
    unique over the batch; -1 where there is no text. Merged units do not cross special tokens."""
    rows, length = units.shape
    is_text = units >= 0
    edges = np.cumsum(probabilities)[:-1]
    sizes = 1 + np.searchsorted(edges, rng.random((rows, length)), side="right")
    first = np.cumsum(sizes, axis=1) - sizes  # index of the first unit of each merged unit
    starts_merged = np.zeros((rows, length), dtype=bool)
    row, index = np.nonzero(first < length)
    starts_merged[row, first[row, index]] = True
    is_start = np.ones((rows, length), dtype=bool)  # a unit begins; a position without text counts as a unit
    is_start[:, 1:] = (units[:, 1:] != units[:, :-1]) | ~is_text[:, 1:]
    is_start &= np.take_along_axis(starts_merged, np.cumsum(is_start, axis=1) - 1, axis=1)
    is_start[:, 1:] |= ~is_text[:, :-1]
    is_start[:, 0] = True
    return np.where(is_text, np.cumsum(is_start & is_text).reshape(is_text.shape) - 1, -1)


def truncated_geometric(p: float, max_words: int) -> list[float]:
    """Probabilities of span lengths 1, 2, 3...: geometric with parameter `p`, truncated at `max_words` (SpanBERT,
    arXiv:1907.10529, section 3.1: 0.2 and 10 give a mean of 3.8 words)."""
    weights = p * (1 - p) ** np.arange(max_words)
    probabilities: list[float] = (weights / weights.sum()).tolist()
    return probabilities


def restrict_units(units: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Unit ids at the candidate positions only; a candidate outside all units becomes its own unit."""
    new_ids = units.max(initial=-1) + 1 + np.arange(units.size).reshape(units.shape)
    return np.where(candidates, np.where(units >= 0, units, new_ids), -1)


def choose_units(units: NDArray[np.int64], mask_rate: float, rng: RNG,
                 within: np.ndarray | None = None) -> NDArray[np.bool_]:
    """(rows, length) bool: tokens of units selected at `mask_rate`. `units` holds batch-unique ids; -1 is never
    selected.

    `within` gives larger units (spans of words). These are ordered at random and their units in text order, so the last
    span of a row may be cut after a word, and the rate is exact even if a span is longer than it allows.
    """
    is_text = units >= 0
    rows, length = units.shape
    uniform = rng.random((rows, length + 1))
    flat = units[is_text]
    count = int(flat.max()) + 1 if len(flat) else 0
    if not count:
        return np.zeros(units.shape, dtype=bool)
    size = np.bincount(flat, minlength=count)
    row = np.zeros(count, dtype=np.int64)
    key = np.zeros(count)
    row[flat] = np.nonzero(is_text)[0]
    key[flat] = broadcast_per_unit(uniform[:, :length], units if within is None else within)[is_text]
    order = np.lexsort((key, row))  # stable: units of one span keep their order
    order = order[size[order] > 0]
    tokens_through = np.cumsum(size[order])
    first = np.searchsorted(row[order], np.arange(rows))
    before_row = np.concatenate([[0], tokens_through])[first]
    tokens_through = tokens_through - before_row[row[order]]  # tokens of this row up to and including this unit
    tokens_before = tokens_through - size[order]
    target = np.maximum(is_text.sum(1) * mask_rate, np.minimum(1, is_text.sum(1)))[row[order]]
    fraction = (target - tokens_before) / size[order]  # of this unit that still fits
    fits = (fraction >= 1) | ((fraction > 0) & (uniform[:, length][row[order]] < fraction))
    selected = np.zeros(count + 1, dtype=bool)  # index -1 is the last entry: not selected
    selected[order] = fits
    empty = ~np.isin(np.arange(rows), row[order][fits]) & is_text.any(1)
    selected[order[first[empty]]] = True  # a row with text has at least one target
    return selected[units]


def broadcast_per_unit(values: np.ndarray, units: np.ndarray) -> np.ndarray:
    """(rows, length) `values`, with one value for all positions of a unit: that of its last position."""
    shared = np.zeros(int(units.max(initial=-1)) + 2)  # index -1 is the last entry
    is_text = units >= 0
    shared[units[is_text]] = values[is_text]
    return np.where(is_text, shared[units], values)


def replace_tokens(draft: Draft, selected: np.ndarray, mask_probability: float, random_probability: float, rng: RNG,
                   units: np.ndarray | None = None) -> np.ndarray:
    """(rows, length) input ids after corruption of the selected tokens: a fraction `mask_probability` becomes the mask
    token, `random_probability` a random token, the rest stays unchanged. With `units`, all tokens of a unit are
    treated alike."""
    tokenizer = draft.corpus.tokenizer
    regular_ids = tokenizer.regular_ids
    action, token = rng.random((draft.rows, 2, draft.input_ids.shape[1])).transpose(1, 0, 2)
    if units is not None:
        action = broadcast_per_unit(action, units)
    masked = selected & (action < mask_probability)
    random = selected & ~masked & (action < mask_probability + random_probability)
    ids = np.where(masked, tokenizer.special_id("mask"), draft.input_ids)
    return np.where(random, regular_ids[(token * len(regular_ids)).astype(np.int64)], ids).astype(np.int32)


def stochastic_round(exact: NDArray[np.float64], rng: RNG) -> NDArray[np.int64]:
    """(rows,) integers: rounded up or down at random, so that the mean is exact."""
    floor = np.floor(exact).astype(np.int64)
    return floor + (rng.random((len(exact), 1))[:, 0] < exact - floor)


def _target_counts(counts: np.ndarray, mask_rate: float, rng: RNG) -> np.ndarray:
    """counts x mask_rate, exact in the mean; at least 1 in rows with text."""
    return stochastic_round(counts * mask_rate, rng).clip(1, counts)


def segment_b_mask(draft: Draft) -> np.ndarray:
    """(rows, length) bool: segment B and the separator after it, so that a model that generates by filling in masks
    learns to stop (arXiv:1905.03197, section 2.4)."""
    position, start = np.arange(draft.is_text.shape[1]), draft.segment_b_start()[:, None]
    end = start + draft.spans.part_lengths(1)[:, None]
    in_b: np.ndarray = (position >= start) & (position <= end) & (position < draft.lengths[:, None])
    return in_b
