"""Two-sided counts: which token stands between its neighbours. The baseline of masked language models.

The probability of a masked token is a mixture of relative frequencies: of the token alone (with add-one smoothing),
after its left neighbour, before its right neighbour, and between both. A context that was never seen has the
probabilities of the level below; a pair of neighbours the mean of its two sides. The weights of the mixture are fitted
by expectation maximization (Jelinek & Mercer 1980) to text that is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stemma.counts.packed_ngrams import Counts, NgramPacker, Words

ROUNDS = 50  # of expectation maximization; it converges long before
MIN_WEIGHT = 1e-4  # of each level
LEVELS = {"none": (), "left": ("after",), "both": ("after", "before", "between")}  # contexts, by the neighbours used
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NeighborTables:
    """`keys[level]`, sorted: context * vocabulary + token; the context of "between" is left * vocabulary + right.
    `probabilities[level]`: the relative frequency of each token in its context."""

    unigram: NDArray[np.float32]
    keys: dict[str, Integers]
    probabilities: dict[str, NDArray[np.float32]]


def estimate_neighbors(pieces: Iterable[tuple[Words, Counts]], packer: NgramPacker, neighbors: str,
                       context_ids: NDArray[np.bool_]) -> NeighborTables:
    """The tables of counted n-grams, which come sorted. `context_ids`: (vocabulary,) which tokens are text; special
    tokens are no context."""
    size = packer.vocab_size
    unigram = np.zeros(size, np.int64)
    parts: dict[str, list[tuple[Integers, Counts]]] = {level: [] for level in LEVELS[neighbors]}
    is_text = np.append(context_ids, False)  # -1, nothing before, is the last one
    for packed, counts in pieces:
        tokens = [packer.column(packed, column) for column in range(packer.order)]  # the newest first
        text = [is_text[column] for column in tokens]
        np.add.at(unigram, tokens[0][text[0]], counts[text[0]])
        if parts:
            pair = text[0] & text[1]
            last, first = tokens[0][pair], tokens[1][pair]
            parts["after"].append(_sum_by_key(first * size + last, counts[pair]))
        if "between" in parts:
            parts["before"].append(_sum_by_key(last * size + first, counts[pair]))
            triple = pair & text[2]
            right, middle, left = (column[triple] for column in tokens)
            parts["between"].append(_sum_by_key((left * size + right) * size + middle, counts[triple]))
    keys, probabilities = {}, {}
    for level, found in parts.items():
        keys[level], counts = _sum_by_key(*(np.concatenate(column) for column in zip(*found, strict=True)))
        probabilities[level] = _relative(keys[level] // size, counts)
    return NeighborTables(((unigram + 1) / (unigram.sum() + size)).astype(np.float32), keys, probabilities)


def _sum_by_key(keys: Integers, counts: Counts) -> tuple[Integers, Counts]:
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)])
    return keys[starts], np.add.reduceat(counts, starts) if len(starts) else counts


def _relative(contexts: Integers, counts: Counts) -> NDArray[np.float32]:
    """Counts divided by the sum over their context; equal contexts are neighbours."""
    starts = np.flatnonzero(np.concatenate([[True], contexts[1:] != contexts[:-1]])[: len(contexts)])
    if not len(starts):
        return np.zeros(0, np.float32)
    totals = np.repeat(np.add.reduceat(counts, starts), np.diff(np.append(starts, len(counts))))
    probabilities: NDArray[np.float32] = (counts / totals).astype(np.float32)
    return probabilities


def fit_mixture(levels: Floats) -> Floats:
    """Maximum-likelihood weights of the mixture of `levels`, (tokens, levels), by expectation maximization."""
    weights = np.full(levels.shape[1], 1 / levels.shape[1])
    for _ in range(ROUNDS):
        joint = levels * weights
        weights = (joint / joint.sum(axis=1, keepdims=True)).mean(axis=0)
    weights = np.maximum(weights, MIN_WEIGHT)  # no token has probability 0
    normalized: Floats = weights / weights.sum()
    return normalized
