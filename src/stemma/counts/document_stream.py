"""The n-grams of documents, in parts of a given number of tokens.

A document is read as `end w1 ... wm end`: the token that separates documents is the context of the first token, and it
is predicted after the last one. No n-gram crosses it. Text may spell this token; there too one document ends and
another begins.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stemma.counts.packed_ngrams import NgramPacker, Words

Integers = NDArray[np.int64]


class DocumentStream:
    """Documents as one sequence of predicted tokens. `ranges` (documents, 2) are offsets for `tokens_at`."""

    def __init__(self, ranges: np.ndarray, tokens_at: Callable[[Integers], np.ndarray], end_id: int):
        self.starts, stops = np.asarray(ranges, np.int64).reshape(-1, 2).T
        self.lengths = stops - self.starts
        self.tokens_at, self.end_id = tokens_at, end_id
        # a document takes one position more than it has predicted tokens: the separator before it
        self.firsts = np.concatenate([[0], np.cumsum(self.lengths + 2)])

    @property
    def num_positions(self) -> int:
        return int(self.firsts[-1])

    def read(self, start: int, stop: int) -> tuple[Integers, Integers]:
        """(tokens, number of tokens before each in its document) of these positions. An end token in the text begins
        another document for the positions that are read after it."""
        positions = np.arange(start, stop)
        document = np.searchsorted(self.firsts, positions, side="right") - 1
        depth = positions - self.firsts[document]
        inside = (depth > 0) & (depth <= self.lengths[document])
        tokens = np.full(len(positions), self.end_id, np.int64)
        tokens[inside] = self.tokens_at((self.starts[document] + depth - 1)[inside])
        index = np.arange(len(positions))
        ends = np.where(inside & (tokens == self.end_id), index, -1)
        last_end = np.concatenate([[-1], np.maximum.accumulate(ends)])[:len(positions)]  # before each position
        return tokens, np.where(last_end >= 0, np.minimum(depth, index - last_end), depth)

    def ngrams(self, start: int, stop: int, packer: NgramPacker) -> tuple[Words, Integers]:
        """The n-gram of every token that is predicted at these positions, and these tokens."""
        first = max(0, start - (packer.order - 1))
        tokens, depth = self.read(first, stop)
        new = np.arange(start - first, stop - first)
        new = new[depth[new] > 0]
        columns = [np.where(depth[new] >= back, tokens[np.maximum(new - back, 0)], -1) for back in range(packer.order)]
        return packer.pack(columns), columns[0]
