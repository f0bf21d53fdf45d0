"""Rows of training text before any token is read: which stretches of the corpus stand in which row, in which order.

A packer writes pieces, a sentence objective rearranges them (another second half, a swap, a shuffle), and only then
does the draft lay them out with special tokens. So a rearrangement moves a few integers, never text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stemma.corpus.randomness import Randomness


@dataclass
class Pieces:
    """Flat arrays, one entry a piece, sorted by row; within a row and part the order is the reading order."""

    rows: int
    row: np.ndarray  # (P,) int64
    start: np.ndarray  # (P,) int64, token offset in the corpus
    length: np.ndarray  # (P,) int64
    part: np.ndarray  # (P,) int8: 0 is A of the template, 1 is B, 2 is the past that stands before both
    gap: np.ndarray  # (P,) bool: a separator stands before this piece (a new document begins inside the row)
    running: bool = False  # rows are cut out of running text: behind a row's end its document goes on

    @classmethod
    def of(cls, rows: int, pieces: list[tuple[int, int, int, int, bool]], running: bool = False) -> Pieces:
        """From (row, start, length, part, gap) tuples."""
        table = np.array(pieces, dtype=np.int64).reshape(-1, 5)
        return cls(rows, table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(np.int8), table[:, 4].astype(bool),
                   running)

    @classmethod
    def join(cls, parts: list[Pieces]) -> Pieces:
        first = np.cumsum([0, *(p.rows for p in parts)])
        row = np.concatenate([p.row + offset for p, offset in zip(parts, first[:-1], strict=True)])
        start, length, part, gap = (np.concatenate([getattr(p, name) for p in parts])
                                    for name in ("start", "length", "part", "gap"))
        return cls(int(first[-1]), row, start, length, part, gap, all(p.running for p in parts))

    def select(self, rows: np.ndarray) -> Pieces:
        """The given rows, in the given order."""
        first = np.searchsorted(self.row, np.arange(self.rows + 1))
        counts = first[rows + 1] - first[rows]
        owner = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        index = first[rows][owner] + within
        return Pieces(len(rows), owner, self.start[index], self.length[index], self.part[index], self.gap[index],
                      self.running)

    def part_lengths(self, part: int) -> np.ndarray:
        """(rows,) tokens in one part of each row."""
        chosen = self.part == part
        return np.bincount(self.row[chosen], weights=self.length[chosen], minlength=self.rows).astype(np.int64)

    def replace_part(self, part: int, rows: np.ndarray, start: np.ndarray, length: np.ndarray) -> None:
        """Put one new piece in the place of a part of the given rows."""
        keep = ~((self.part == part) & np.isin(self.row, rows))
        row = np.concatenate([self.row[keep], rows])
        order = np.lexsort((np.concatenate([self.part[keep], np.full(len(rows), part)]), row))
        self.row = row[order]
        self.start = np.concatenate([self.start[keep], start])[order]
        self.length = np.concatenate([self.length[keep], length])[order]
        self.part = np.concatenate([self.part[keep], np.full(len(rows), part, dtype=np.int8)])[order]
        self.gap = np.concatenate([self.gap[keep], np.zeros(len(rows), dtype=bool)])[order]

    def swap_parts(self, rows: np.ndarray) -> None:
        """Let A and B of the given rows change places."""
        swapped = np.isin(self.row, rows) & (self.part < 2)
        part = np.where(swapped, 1 - self.part, self.part).astype(np.int8)
        order = np.lexsort((part, self.row))
        self.row, self.start, self.length, self.part, self.gap = (
            values[order] for values in (self.row, self.start, self.length, part, self.gap))

    def truncate_pairs(self, capacity: int, rng: Randomness) -> None:
        """Cut A and B (one piece each) to fit, always from the longer one, a random share at the front and the rest
        at the back, so that both beginnings and ends of sentences go missing (arXiv:1810.04805, A.2)."""
        share = rng.random((self.rows, 2))  # drawn even if nothing is cut: what a row draws must not hang on the others
        for_a, for_b = self.part_lengths(0), self.part_lengths(1)
        excess = np.maximum(for_a + for_b - capacity, 0)
        difference = np.abs(for_a - for_b)
        common = np.maximum(excess - difference, 0)  # cut from both alike, once they are level
        larger = np.minimum(excess, difference)
        cut_a = np.where(for_a > for_b, larger, 0) + common // 2
        cut_b = np.where(for_a > for_b, 0, larger) + (common + 1) // 2
        cut = np.where(self.part == 0, cut_a[self.row], cut_b[self.row])
        front = (share[self.row, self.part] * (cut + 1)).astype(np.int64)
        self.start = self.start + front
        self.length = self.length - cut
