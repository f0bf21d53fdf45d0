"""Rows that go on from batch to batch, for networks with a memory (Transformer-XL, arXiv:1901.02860).

The documents stand one behind the other in the order of the corpus, a separator between them, and this running text is
cut into as many columns as a batch has rows; row b of every batch reads on in column b, and nothing is shuffled. A
column of backward rows is read from its end to its beginning, so that the memory holds what follows in the text.

`contiguous` reads a whole window each time: every token once an epoch. `contiguous_pair` is XLNet's (arXiv:1906.08237):
the window's first half is running text that the memory keeps, the other half a pair: A goes on from there, B goes on
from A or, every other time, begins at another sentence of the column. The next row's first half is where A began.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np

from stemma.corpus.packers import Packer
from stemma.corpus.row_spans import RowSpans
from stemma.corpus.sampler import Cursor, SamplerRequest, ValidationRows, corpus_too_small
from stemma.corpus.subset import CorpusSubset
from stemma.registry import register
from stemma.schema.corpus import PackingSettings

A, B, PAST = 0, 1, 2  # parts of a row
MIN_SEGMENTS = 4  # windows that a held-out column should have at least, so that a memory comes into play
RANDOM_B_PROBABILITY = 0.5  # how often B does not go on from A, as in the authors' code


class ConcatenatedText:
    """The documents of a view in their order, one separator between two of them where there is a token for it. Places
    count through tokens and separators; nothing is copied."""

    def __init__(self, subset: CorpusSubset, has_separator: bool):
        self.subset = subset
        self.separator_length = int(has_separator)
        sizes = subset.document_ranges[:, 1] - subset.document_ranges[:, 0] + self.separator_length
        self.first = np.cumsum(sizes) - sizes  # (D,) place of each document's first token
        self.size = max(0, int(sizes.sum()) - self.separator_length)

    def spans(self, start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, ...]:
        """Stretches of places as pieces: which stretch each belongs to, its token offset, its length, and whether a
        separator stands before it. A stretch that ends with a separator ends with a piece of no length."""
        separators = self.first - self.separator_length
        first = np.searchsorted(separators, start, side="right") - 1
        counts = np.maximum(np.searchsorted(separators, stop) - first, 0) * (stop > start)
        stretch = np.repeat(np.arange(len(start)), counts)
        document = first[stretch] + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        begins, ends = self.subset.document_ranges[document].T
        low = np.maximum(start[stretch], self.first[document])
        high = np.minimum(stop[stretch], self.first[document] + ends - begins)
        return stretch, begins + low - self.first[document], high - low, start[stretch] < self.first[document]

    def boundaries(self, start: int, stop: int) -> np.ndarray:
        """The places from `start` to `stop` at which a sentence or a separator begins."""
        documents, sentences = self.subset.document_ranges, self.subset.corpus.sentence_starts
        inside = slice(max(0, int(np.searchsorted(self.first, start, side="right")) - 1),
                       int(np.searchsorted(self.first, stop, side="right")))
        edges = np.searchsorted(sentences, [documents[inside][0, 0], documents[inside][-1, 1]])
        begins = sentences[edges[0]:edges[1]]
        owner = np.searchsorted(documents[:, 0], begins, side="right") - 1
        kept = begins < documents[owner, 1]  # what lies between may be held out
        places = self.first[owner[kept]] + begins[kept] - documents[owner[kept], 0]
        found = np.unique(np.concatenate([places, self.first[inside] - self.separator_length]))
        return found[(found >= start) & (found <= stop)]


class Lane(NamedTuple):
    """A stretch of running text, read from its beginning or from its end."""

    start: int
    stop: int
    is_reversed: bool

    @property
    def size(self) -> int:
        return self.stop - self.start

    def text_range(self, start: int, stop: int) -> tuple[int, int]:
        """From places counted along the reading to places of the text."""
        if self.is_reversed:
            return self.stop - stop, self.stop - start
        return self.start + start, self.start + stop


class LaneSpan(NamedTuple):
    """What one part of a row reads: from `start` to `stop`, counted along its column."""

    part: int
    start: int
    stop: int


class ContiguousPacking(PackingSettings):
    contiguous = True


class ContiguousPairPacking(PackingSettings):
    contiguous = True
    paired = True
    past = 0.5


@register("packing", "contiguous", ContiguousPacking)
@register("packing", "contiguous_pair", ContiguousPairPacking)
class ContiguousSampler:
    """Endless batches of a fixed number of rows. A position is (epoch, 0, batch); each epoch begins at the columns'
    beginnings. A text too short for so many columns of one window has fewer, which several rows share."""

    num_dropped, max_row_length = 0, 0  # whatever is too long is cut
    first_dropped: int | None = None

    def __init__(self, subset: CorpusSubset, packer: Packer, seed: int, rows: int,
                 reversed_rows: np.ndarray | None = None):
        self.subset = subset
        self.packer = packer
        self.seed = seed
        self.rows = rows
        self.reversed_rows = np.zeros(rows, dtype=bool) if reversed_rows is None else reversed_rows
        self.cursor = Cursor()
        self.text = ConcatenatedText(subset, packer.template.has_separator)
        self.num_distinct_lanes = max(1, min(rows, self.text.size // packer.template.length))
        edges = [number * self.text.size // self.num_distinct_lanes for number in range(self.num_distinct_lanes + 1)]
        self.lanes = [Lane(edges[row % self.num_distinct_lanes], edges[row % self.num_distinct_lanes + 1],
                           bool(self.reversed_rows[row]))
                        for row in range(rows)]

    @classmethod
    def from_request(cls, request: SamplerRequest) -> Self:
        return cls(request.subset, request.packer, request.seed, request.rows, request.reversed_rows(request.rows))

    @classmethod
    def validation_rows(cls, request: SamplerRequest, tokens: int, max_batch_tokens: int) -> Iterator[ValidationRows]:
        length, most = request.length, max(1, tokens // request.length)
        size = max(1, min(request.rows, max_batch_tokens // length, request.subset.num_tokens
                          // (MIN_SEGMENTS * length)))
        feed = cls.from_request(replace(request, rows=size))
        for start in range(0, min(most, feed.num_batches * size), size):
            continues = feed.continues_previous
            yield ValidationRows(start, feed.next_rows(size)[0], continues)

    @property
    def continues_previous(self) -> bool:
        """Whether the rows taken next go on from those taken last."""
        return self.cursor.row > 0

    @property
    def num_batches(self) -> int:
        """How many batches an epoch has."""
        layout, longest = self.packer.template, max(column.size for column in self.lanes)
        if self.packer.is_pair:
            return 1 + max(0, min(column.size for column in self.lanes) - layout.length) // layout.reuse_length
        return -(-longest // self.packer.capacity)

    def batches_in_epoch(self) -> int:
        return self.num_batches

    def next_rows(self, rows: int) -> tuple[RowSpans, np.ndarray]:
        """The next batch, and the epoch that each row belongs to."""
        assert rows == self.rows, "the number of rows is that of the columns"
        if not self.text.size:
            raise corpus_too_small()
        at = self.cursor
        parts = self._pairs(at) if self.packer.is_pair else self._windows(at)
        self.cursor = Cursor(at.epoch, 0, at.row + 1) if at.row + 1 < self.num_batches else Cursor(at.epoch + 1)
        return self._row_spans(parts), np.full(rows, at.epoch)

    def _windows(self, at: Cursor) -> list[list[LaneSpan]]:
        start = at.row * self.packer.capacity
        return [[LaneSpan(A, min(start, column.size), min(start + self.packer.capacity, column.size))]
                for column in self.lanes]

    def _pairs(self, at: Cursor) -> list[list[LaneSpan]]:
        rng = np.random.default_rng([self.seed, at.epoch, at.row, 5])
        return [self._pair(column, at.row * self.packer.template.reuse_length, rng.random(3)) for column in self.lanes]

    def _pair(self, column: Lane, start: int, uniform: np.ndarray) -> list[LaneSpan]:
        """The past, and then A and B, which together fill the window: A is whole sentences, B is cut where it ends."""
        begin = start + min(self.packer.template.reuse_length, column.size // 2)
        room = min(self.packer.capacity, column.size - begin)
        cut, elsewhere, where = uniform
        ends = self._bounds(column, begin + 1, begin + room - 1)
        middle = int(ends[int(cut * len(ends))]) if len(ends) else begin + room - room // 2
        length = self.packer.capacity - (middle - begin)
        second = middle
        if elsewhere < RANDOM_B_PROBABILITY or middle + length > column.size:
            length = min(length, column.size)
            second = int(where * (column.size - length + 1))
            sentences = self._bounds(column, max(0, second - self.packer.capacity), second)
            second = int(sentences[-1]) if len(sentences) else second
        return [LaneSpan(PAST, start, begin), LaneSpan(A, begin, middle), LaneSpan(B, second, second + length)]

    def _bounds(self, column: Lane, start: int, stop: int) -> np.ndarray:
        """Where a sentence begins, in the order of reading: backward, that is where it ends in the text."""
        if stop < start:
            return np.zeros(0, dtype=np.int64)
        found = self.text.boundaries(*column.text_range(start, stop))
        return column.stop - found[::-1] if column.is_reversed else found - column.start

    def _row_spans(self, rows: list[list[LaneSpan]]) -> RowSpans:
        """In the order of the text, part by part; the draft turns backward rows as a whole."""
        owner = np.array([row for row, parts in enumerate(rows) for _ in parts], dtype=np.int64)
        number = np.array([part.part for parts in rows for part in parts], dtype=np.int8)
        stretches = np.array([self.lanes[row].text_range(part.start, part.stop)
                              for row, parts in enumerate(rows) for part in parts], dtype=np.int64)
        stretch, start, length, gap = self.text.spans(*stretches.T)
        return RowSpans(self.rows, owner[stretch], start, length, number[stretch], gap,
                      continues_after=not self.packer.is_pair)
