"""Sample prediction targets in spans, as in XLNet's released code (arXiv:1906.08237): spans of whole units alternate
with context along the text; single tokens make up the exact number of targets. Vectorized over the rows.
"""

from __future__ import annotations

import numpy as np

from stemma.corpus.rng import RNG


def choose_spans(units: np.ndarray, start: np.ndarray, stop: np.ndarray, num_targets: np.ndarray,
                 tokens_per_target: int, max_span_units: int, rng: RNG) -> np.ndarray:
    """(rows, length) bool: exactly `num_targets` tokens per row, between positions `start` and `stop`. `units` (rows,
    length) holds unit ids; -1 is never selected."""
    rows, length = units.shape
    steps = length // (tokens_per_target + 1) + 1  # upper bound on the number of spans
    position = np.arange(length)
    free = (units >= 0) & (position >= start[:, None]) & (position < stop[:, None])
    in_spans = sample_spans(units, start, stop, num_targets, tokens_per_target, max_span_units,
                            rng.random((rows, steps, 2))) & free
    in_spans &= np.cumsum(in_spans, axis=1) <= num_targets[:, None]  # cut the last span if it is too long
    keys = np.where(free & ~in_spans, rng.random((rows, length)), 2.0)  # positions that are not free sort last
    singles = np.zeros(units.shape, dtype=bool)
    missing = num_targets - in_spans.sum(1)
    np.put_along_axis(singles, np.argsort(keys, axis=1), position < missing[:, None], axis=1)
    return in_spans | singles


def sample_spans(units: np.ndarray, start: np.ndarray, stop: np.ndarray, num_targets: np.ndarray,
                 tokens_per_target: int, max_span_units: int, uniform: np.ndarray) -> np.ndarray:
    """(rows, length) bool: spans of n units, n from 1 to `max_span_units` with probability ~ 1/n, each at a random
    position within n x `tokens_per_target` tokens; until the end of the row or `num_targets` is reached."""
    rows, length = units.shape
    all_rows = np.arange(rows)
    is_unit_start = np.ones((rows, length + 1), dtype=bool)  # a unit begins, or the row ends
    is_unit_start[:, 1:length] = (units[:, 1:] != units[:, :-1]) | (units[:, 1:] < 0)
    is_unit_start[all_rows, start] = True
    unit_index = np.cumsum(is_unit_start, axis=1) - 1  # of each position
    unit_start = np.full((rows, length + 2 + max_span_units), length)
    row, position = np.nonzero(is_unit_start)
    unit_start[row, unit_index[row, position]] = position
    next_unit = np.where(is_unit_start, unit_index, unit_index + 1)  # the first unit that begins here or later
    tokens_before = np.concatenate([np.zeros((rows, 1), dtype=np.int64), np.cumsum(units >= 0, axis=1)], axis=1)

    weights = 1 / np.arange(1, max_span_units + 1)
    sizes = 1 + np.searchsorted(np.cumsum(weights / weights.sum())[:-1], uniform[:, :, 0], side="right")
    edges = np.zeros((rows, length + 1), dtype=np.int64)  # +1 where a span begins, -1 where it ends
    position_reached, remaining = start.copy(), num_targets.copy()
    active = all_rows[(position_reached < stop) & (remaining > 0)]
    for step in range(uniform.shape[1]):
        size = np.minimum(sizes[active, step], remaining[active])
        context_before = (uniform[active, step, 1] * size * tokens_per_target).astype(np.int64)
        unit = next_unit[active, np.minimum(position_reached[active] + context_before, length)]
        begin, end = unit_start[active, unit], unit_start[active, unit + size]
        fits = end < stop[active]
        active, begin, end = active[fits], begin[fits], end[fits]
        edges[active, begin] += 1
        edges[active, end] -= 1
        position_reached[active] = end + (size * tokens_per_target - context_before)[fits]
        remaining[active] -= tokens_before[active, end] - tokens_before[active, begin]
        active = active[(position_reached[active] < stop[active]) & (remaining[active] > 0)]
    return np.cumsum(edges, axis=1)[:, :length] > 0
