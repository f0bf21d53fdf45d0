"""N-grams packed into 64-bit words, so that numpy sorts and compares them.

An n-gram is stored with its last token first: sorted this way, all n-grams with a common suffix are neighbours, and the
suffixes of every length are in the same order. Token ids are shifted by one; 0 stands for "nothing before", which is
where an n-gram at the beginning of a document is shorter than the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]  # (n-grams, words of each)
Counts = NDArray[np.int64]
BITS = 64


@dataclass(frozen=True)
class NgramPacker:
    """Packs n-grams of one length over a vocabulary."""

    order: int
    vocab_size: int

    @property
    def bits(self) -> int:
        """Bits of one token."""
        return max(1, int(self.vocab_size).bit_length())

    @property
    def tokens_per_word(self) -> int:
        return BITS // self.bits

    @property
    def num_words(self) -> int:
        return -(-self.order // self.tokens_per_word)

    def _place(self, column: int) -> tuple[int, np.uint64]:
        """(word, shift) of the token that is `column` positions before the last one."""
        word, slot = divmod(column, self.tokens_per_word)
        return word, np.uint64((self.tokens_per_word - 1 - slot) * self.bits)

    def pack(self, columns: list[NDArray[np.int64]]) -> Words:
        """`columns[j]`: the token j positions before the last one, -1 for none."""
        packed = np.zeros((len(columns[0]), self.num_words), np.uint64)
        for column, tokens in enumerate(columns):
            word, shift = self._place(column)
            packed[:, word] |= (tokens + 1).astype(np.uint64) << shift
        return packed

    def column(self, packed: Words, column: int) -> NDArray[np.int64]:
        """The token `column` positions before the last one of each n-gram; -1: none."""
        word, shift = self._place(column)
        mask = np.uint64((1 << self.bits) - 1)
        return ((packed[:, word] >> shift) & mask).astype(np.int64) - 1

    def first_difference(self, packed: Words) -> NDArray[np.int8]:
        """For each n-gram of a sorted array the first column in which it differs from the one before it; the first
        n-gram differs in column 0."""
        level = np.full(len(packed), self.order, np.int8)
        if len(packed):
            level[0] = 0
        for column in reversed(range(self.order)):
            tokens = self.column(packed, column)
            level[1:][tokens[1:] != tokens[:-1]] = column
        return level


def sort_and_sum(packed: Words, counts: Counts | None = None) -> tuple[Words, Counts]:
    """The distinct n-grams in order, and the sum of the counts of each (without `counts` each counts once)."""
    if not len(packed):
        return packed, np.zeros(0, np.int64)
    if packed.shape[1] == 1 and counts is None:
        packed = np.sort(packed[:, 0])[:, None]
    else:
        order = np.argsort(packed[:, 0], kind="stable") if packed.shape[1] == 1 else np.lexsort(packed.T[::-1])
        packed, counts = packed[order], None if counts is None else counts[order]
    first = np.concatenate([[True], (packed[1:] != packed[:-1]).any(1)])
    starts = np.flatnonzero(first)
    sums = np.diff(np.append(starts, len(packed))) if counts is None else np.add.reduceat(counts, starts)
    return packed[starts], sums


def insertion_point(packed: Words, key: Words) -> int:
    """The number of n-grams of a sorted array that come before `key`, (words,)."""
    low, high = 0, len(packed)
    for word in range(packed.shape[1]):
        column = packed[low:high, word]
        first = low + int(np.searchsorted(column, key[word], side="left"))
        high = low + int(np.searchsorted(column, key[word], side="right"))
        low = first
    return low
