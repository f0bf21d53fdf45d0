"""Interpolated modified Kneser-Ney smoothing (Chen & Goodman 1998, "An Empirical Study of Smoothing Techniques for
Language Modeling", TR-10-98, equations 26 and 27).

    p(w | h) = (c(hw) - D(c(hw))) / sum_v c(hv)  +  gamma(h) p(w | h')            h' is h without its oldest token

The highest order uses the counts of the text. A lower order uses the number of different tokens before an n-gram
(section 4.1.1), and for n-grams at the beginning of a document, which have nothing before them, their counts. The
unigram is interpolated with the uniform distribution over the vocabulary. D has three values per order, for the counts
1, 2 and 3 or more, estimated from the counts of counts:

    Y = n1 / (n1 + 2 n2),  D1 = 1 - 2 Y n2 / n1,  D2 = 2 - 3 Y n3 / n2,  D3+ = 3 - 4 Y n4 / n3

Here the n-grams come sorted by their suffixes, so that everything is a difference of neighbours.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stemma.counts.packed_ngrams import Counts, NgramPacker, Words
from stemma.progress import ProgressStage, progress_stage

MAX_ORDER = 6
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)  # for counts of counts that give none, as in KenLM's --discount_fallback
Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class NgramTables:
    """A back-off model: a trie of n-grams with natural logarithms.

    `keys[k]` are the n-grams of k + 2 tokens, sorted: the index of the first k + 1 tokens in the table below, times the
    size of the vocabulary, plus the last token. The table of unigrams has a row for every token. `log_probs[k]` belongs
    to n-grams of k + 1 tokens, `backoffs[k]` too; the highest order has none."""

    vocab_size: int
    keys: list[Indices]
    log_probs: list[NDArray[np.float32]]
    backoffs: list[NDArray[np.float32]]

    @property
    def order(self) -> int:
        return len(self.log_probs)

    def num_ngrams(self) -> list[int]:
        return [len(values) for values in self.log_probs]


@dataclass(frozen=True)
class Discounts:
    """The discounts of one order: of counts 1, 2, and 3 or more."""

    values: tuple[float, float, float]
    estimated: bool  # False: the counts of counts give none, so these are the usual ones

    def of(self, counts: Counts) -> Floats:
        return np.array([0.0, *self.values])[np.minimum(counts, 3)]


def estimate_discounts(counts: Counts) -> Discounts:
    """The discounts from the counts of counts."""
    n1, n2, n3, n4 = np.bincount(np.minimum(counts, 5), minlength=6)[1:5].astype(float)
    if not (n1 and n2 and n3):
        return Discounts(FALLBACK_DISCOUNTS, estimated=False)
    y = n1 / (n1 + 2 * n2)
    values = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    if not all(0 < value <= number for number, value in enumerate(values, 1)):  # 0 leaves nothing to shorter n-grams
        return Discounts(FALLBACK_DISCOUNTS, estimated=False)
    return Discounts(values, estimated=True)


@dataclass(frozen=True)
class _Level:
    """The distinct n-grams of one length, in suffix order."""

    key: Indices  # as in the tables; of a unigram, its token
    counts: Counts  # of the text, or of different tokens before it
    parent: NDArray[np.int32]  # the n-gram without its oldest token, in the level below


def estimate(pieces: Collection[tuple[Words, Counts]],
             packer: NgramPacker) -> tuple[NgramTables, list[Discounts]]:
    """The model of counted n-grams of the packer's order, which come sorted and distinct. The pieces are read once for
    each length, so that only the n-grams of one length are in memory besides the model."""
    size = packer.vocab_size
    tables = NgramTables(size, [], [], [])
    discounts: list[Discounts] = []
    position: NDArray[np.int32] = np.zeros(0, np.int32)  # table row of each n-gram of the level below
    lower = np.full(size, 1 / size)  # probabilities of the table below; the unigrams' is the uniform distribution
    with progress_stage("smoothing", packer.order * len(pieces), "pieces") as stage:
        for index in range(packer.order):
            level = _read_level(pieces, packer, index, tables, stage)
            discounts.append(estimate_discounts(level.counts))
            if index == 0:
                below, prefix, num_prefixes = lower[level.key], np.zeros(len(level.key), np.int64), 1
            else:
                below, prefix, num_prefixes = lower[position[level.parent]], level.key // size, len(lower)
            probabilities, gamma = _smooth(level.counts, prefix, num_prefixes, below, discounts[-1])
            if index == 0:
                lower, position = lower * gamma[0], level.key.astype(np.int32)
                lower[level.key] = probabilities
            else:
                order = np.argsort(level.key, kind="stable")
                with np.errstate(divide="ignore"):
                    tables.backoffs.append(np.where(gamma > 0, np.log(gamma), 0).astype(np.float32))
                tables.keys.append(level.key[order])
                position = np.empty(len(order), np.int32)
                position[order] = np.arange(len(order), dtype=np.int32)
                lower = probabilities[order]
            tables.log_probs.append(np.log(lower).astype(np.float32))
    return tables, discounts


def _smooth(counts: Counts, prefix: Indices, num_prefixes: int, below: Floats,
            discounts: Discounts) -> tuple[Floats, Floats]:
    """The probability of each n-gram, and gamma of each prefix: 0 where nothing follows it."""
    totals = np.bincount(prefix, counts, num_prefixes)
    discount = discounts.of(counts)
    left_over = np.bincount(prefix, discount, num_prefixes)
    gamma = np.divide(left_over, totals, out=np.zeros(num_prefixes), where=totals > 0)
    return (counts - discount) / totals[prefix] + gamma[prefix] * below, gamma


def _read_level(pieces: Collection[tuple[Words, Counts]], packer: NgramPacker, index: int, tables: NgramTables,
                stage: ProgressStage) -> _Level:
    """The distinct n-grams of index + 1 tokens.

    Two neighbours that differ first in column j have the same suffixes up to j tokens. So an n-gram begins a new suffix
    of every length above j, and the number of suffixes that lie in a shorter one counts the tokens before it."""
    highest = index + 1 == packer.order
    keys: list[Indices] = []
    text_counts: list[Counts] = []
    parents: list[NDArray[np.int32]] = []
    begins: list[Indices] = []  # number of suffixes one token longer before each
    num_shorter = num_longer = 0
    last: Words | None = None
    for packed, counts in pieces:
        rows = packed if last is None else np.concatenate([last, packed])
        difference = packer.first_difference(rows)[len(rows) - len(packed):]
        last = packed[-1:]
        # where an n-gram at the beginning of a document is shorter than the suffix, there is no suffix
        new = (difference <= index) & (packer.column(packed, index) >= 0)
        chosen = packed[new]
        keys.append(_key(tables, [packer.column(chosen, column) for column in range(index + 1)]))
        text_counts.append(counts[new])
        if index:
            shorter = (difference < index) & (packer.column(packed, index - 1) >= 0)
            parents.append((num_shorter + np.cumsum(shorter)[new] - 1).astype(np.int32))
            num_shorter += int(shorter.sum())
        if not highest:
            longer = (difference <= index + 1) & (packer.column(packed, index + 1) >= 0)
            begins.append(np.asarray(num_longer + (np.cumsum(longer) - longer)[new]))
            num_longer += int(longer.sum())
        stage.advance()
    own = _join(text_counts)
    if not highest:  # n-grams with nothing before them keep the counts of the text
        before = np.diff(np.append(_join(begins), num_longer))
        own = np.where(before > 0, before, own)
    return _Level(_join(keys), own, np.concatenate(parents) if parents else np.zeros(0, np.int32))


def _key(tables: NgramTables, tokens: list[Indices]) -> Indices:
    """The key of each n-gram; `tokens[j]` is the token j positions before the last one."""
    row = tokens[-1]
    if len(tokens) == 1:
        return row
    for keys, middle in zip(tables.keys, tokens[-2:0:-1], strict=True):
        row = np.searchsorted(keys, row * tables.vocab_size + middle)
    return row * tables.vocab_size + tokens[0]


def _join(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
