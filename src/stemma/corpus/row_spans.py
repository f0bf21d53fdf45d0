"""Rows of training text as spans of corpus offsets, before any token is read.

A packer creates the spans, a sentence objective rearranges them (random B, swap, shuffle), and then the draft packs
them with special tokens. So rearranging moves integers, not text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stemma.corpus.rng import RNG


@dataclass
class RowSpans:
    """Flat arrays, one entry per span, sorted by row; within a row and part in reading order."""

    num_rows: int
    row: np.ndarray  # (P,) int64
    start: np.ndarray  # (P,) int64, token offset in the corpus
    length: np.ndarray  # (P,) int64
    part: np.ndarray  # (P,) int8: 0 is A of the template, 1 is B, 2 is the past before both
    separator_before: np.ndarray  # (P,) bool: a separator precedes this span (a new document starts inside the row)
    continues_after: bool = False  # rows are cut from running text: a document continues after the row's end

    @classmethod
    def from_tuples(cls, num_rows: int, spans: list[tuple[int, int, int, int, bool]],
                    continues_after: bool = False) -> RowSpans:
        """From (row, start, length, part, separator_before) tuples."""
        table = np.array(spans, dtype=np.int64).reshape(-1, 5)
        return cls(num_rows, table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(np.int8),
                   table[:, 4].astype(bool), continues_after)

    @classmethod
    def concatenate(cls, blocks: list[RowSpans]) -> RowSpans:
        first = np.cumsum([0, *(p.num_rows for p in blocks)])
        row = np.concatenate([p.row + offset for p, offset in zip(blocks, first[:-1], strict=True)])
        start, length, part, separator_before = (np.concatenate([getattr(p, name) for p in blocks])
                                                 for name in ("start", "length", "part", "separator_before"))
        return cls(int(first[-1]), row, start, length, part, separator_before, all(p.continues_after for p in blocks))

    def select(self, rows: np.ndarray) -> RowSpans:
        """The given rows, in the given order."""
        first = np.searchsorted(self.row, np.arange(self.num_rows + 1))
        counts = first[rows + 1] - first[rows]
        new_row = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        index = first[rows][new_row] + within
        return RowSpans(len(rows), new_row, self.start[index], self.length[index], self.part[index],
                        self.separator_before[index], self.continues_after)

    def part_lengths(self, part: int) -> np.ndarray:
        """(rows,) number of tokens in one part of each row."""
        in_part = self.part == part
        return np.bincount(self.row[in_part], weights=self.length[in_part], minlength=self.num_rows).astype(np.int64)

    def replace_part(self, part: int, rows: np.ndarray, start: np.ndarray, length: np.ndarray) -> None:
        """Replace a part of the given rows by one new span."""
        keep = ~((self.part == part) & np.isin(self.row, rows))
        row = np.concatenate([self.row[keep], rows])
        order = np.lexsort((np.concatenate([self.part[keep], np.full(len(rows), part)]), row))
        self.row = row[order]
        self.start = np.concatenate([self.start[keep], start])[order]
        self.length = np.concatenate([self.length[keep], length])[order]
        self.part = np.concatenate([self.part[keep], np.full(len(rows), part, dtype=np.int8)])[order]
        self.separator_before = np.concatenate([self.separator_before[keep], np.zeros(len(rows), dtype=bool)])[order]

    def swap_parts(self, rows: np.ndarray) -> None:
        """Swap A and B of the given rows."""
        swapped = np.isin(self.row, rows) & (self.part < 2)
        part = np.where(swapped, 1 - self.part, self.part).astype(np.int8)
        order = np.lexsort((part, self.row))
        self.row, self.start, self.length, self.part, self.separator_before = (
            values[order] for values in (self.row, self.start, self.length, part, self.separator_before))

    def truncate_pairs(self, capacity: int, rng: RNG) -> None:
        """Truncate A and B (one span each) to fit, always the longer one, a random fraction of the cut at the front and
        the rest at the back (arXiv:1810.04805, A.2)."""
        fraction = rng.random((self.num_rows, 2))  # sampled even if nothing is cut, so that rows are independent
        length_a, length_b = self.part_lengths(0), self.part_lengths(1)
        excess = np.maximum(length_a + length_b - capacity, 0)
        difference = np.abs(length_a - length_b)
        common = np.maximum(excess - difference, 0)  # cut from both equally, once they have equal length
        larger = np.minimum(excess, difference)
        cut_a = np.where(length_a > length_b, larger, 0) + common // 2
        cut_b = np.where(length_a > length_b, 0, larger) + (common + 1) // 2
        cut = np.where(self.part == 0, cut_a[self.row], cut_b[self.row])
        front = (fraction[self.row, self.part] * (cut + 1)).astype(np.int64)
        self.start = self.start + front
        self.length = self.length - cut
