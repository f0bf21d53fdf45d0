"""Rows that continue from batch to batch, for networks with a memory (Transformer-XL, arXiv:1901.02860).

The documents are concatenated in corpus order, with separators, and the text is cut into as many lanes as a batch has
rows. Row b of every batch continues lane b; nothing is shuffled. A reversed lane runs from its end to its beginning, so
that the memory contains the text that follows.

`contiguous` takes a full window each time: every token once per epoch. With `contiguous_both` each lane has two rows,
one that reads it forwards and one that reads it backwards (ELMo, arXiv:1802.05365).

`contiguous_pair` is XLNet's packing (arXiv:1906.08237): the first half of the window is text that the memory reuses,
the second half is a pair. A continues the first half. B continues A or, half of the time, begins at another sentence of
the lane. The next row begins where A began.
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
from stemma.schema.corpus import PackingSettings, packing_settings

A, B, PAST = 0, 1, 2  # parts of a row
MIN_SEGMENTS = 4  # windows per validation lane, so that validation uses the memory
RANDOM_B_PROBABILITY = 0.5  # probability that B does not continue A, as in the authors' code


class ConcatenatedText:
    """The documents of a subset in order, with a separator between them if the template has one. Positions count tokens
    and separators; nothing is copied."""

    def __init__(self, subset: CorpusSubset, has_separator: bool):
        self.subset = subset
        self.separator_length = int(has_separator)
        sizes = subset.document_ranges[:, 1] - subset.document_ranges[:, 0] + self.separator_length
        self.first = np.cumsum(sizes) - sizes  # (D,) position of each document's first token
        self.size = max(0, int(sizes.sum()) - self.separator_length)

    def spans(self, start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, ...]:
        """Position ranges as spans: the range each span belongs to, its token offset, its length, and whether a
        separator comes before it. A range that ends with a separator ends with an empty span."""
        separators = self.first - self.separator_length
        first = np.searchsorted(separators, start, side="right") - 1
        counts = np.maximum(np.searchsorted(separators, stop) - first, 0) * (stop > start)
        range_index = np.repeat(np.arange(len(start)), counts)
        document = first[range_index] + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        document_start, document_stop = self.subset.document_ranges[document].T
        low = np.maximum(start[range_index], self.first[document])
        high = np.minimum(stop[range_index], self.first[document] + document_stop - document_start)
        after_separator = start[range_index] < self.first[document]
        return range_index, document_start + low - self.first[document], high - low, after_separator

    def boundaries(self, start: int, stop: int) -> np.ndarray:
        """Positions from `start` to `stop` at which a sentence or a separator begins."""
        documents, sentences = self.subset.document_ranges, self.subset.corpus.sentence_starts
        inside = slice(max(0, int(np.searchsorted(self.first, start, side="right")) - 1),
                       int(np.searchsorted(self.first, stop, side="right")))
        edges = np.searchsorted(sentences, [documents[inside][0, 0], documents[inside][-1, 1]])
        starts = sentences[edges[0]:edges[1]]
        document = np.searchsorted(documents[:, 0], starts, side="right") - 1
        in_subset = starts < documents[document, 1]  # text between the subset's documents may be held out
        positions = self.first[document[in_subset]] + starts[in_subset] - documents[document[in_subset], 0]
        boundaries = np.unique(np.concatenate([positions, self.first[inside] - self.separator_length]))
        return boundaries[(boundaries >= start) & (boundaries <= stop)]


class Lane(NamedTuple):
    """A range of the concatenated text, read forwards or backwards."""

    start: int
    stop: int
    is_reversed: bool

    @property
    def size(self) -> int:
        return self.stop - self.start

    def text_range(self, start: int, stop: int) -> tuple[int, int]:
        """Convert offsets in reading order to positions of the concatenated text."""
        if self.is_reversed:
            return self.stop - stop, self.stop - start
        return self.start + start, self.start + stop


class LaneSpan(NamedTuple):
    """One part of a row: from `start` to `stop`, offsets in its lane in reading order."""

    part: int
    start: int
    stop: int


class ContiguousPacking(PackingSettings):
    contiguous = True


class ContiguousBothPacking(PackingSettings):
    contiguous = True
    both_directions = True


class ContiguousPairPacking(PackingSettings):
    contiguous = True
    paired = True
    past = 0.5


@register("packing", "contiguous", ContiguousPacking)
@register("packing", "contiguous_both", ContiguousBothPacking)
@register("packing", "contiguous_pair", ContiguousPairPacking)
class ContiguousSampler:
    """Endless batches of a fixed number of rows. The cursor is (epoch, 0, batch); each epoch begins at the start of the
    lanes. If the text is too short to give every row a lane of at least one window, several rows share a lane."""

    num_dropped, max_row_length = 0, 0  # text that is too long is cut, not dropped
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
        most = rows // 2 if packing_settings(packer.kind).both_directions else rows
        self.num_distinct_lanes = max(1, min(most, self.text.size // packer.template.length))
        edges = [index * self.text.size // self.num_distinct_lanes for index in range(self.num_distinct_lanes + 1)]
        self.lanes = [Lane(edges[row % self.num_distinct_lanes], edges[row % self.num_distinct_lanes + 1],
                           bool(self.reversed_rows[row]))
                      for row in range(rows)]

    @classmethod
    def from_request(cls, request: SamplerRequest) -> Self:
        return cls(request.subset, request.packer, request.seed, request.rows, request.reversed_rows(request.rows))

    @classmethod
    def validation_rows(cls, request: SamplerRequest, tokens: int, max_batch_tokens: int) -> Iterator[ValidationRows]:
        length, max_rows = request.length, max(1, tokens // request.length)
        size = max(1, min(request.rows, max_batch_tokens // length,
                          request.subset.num_tokens // (MIN_SEGMENTS * length)))
        if packing_settings(request.packer.kind).both_directions:
            size = max(2, size - size % 2)
        sampler = cls.from_request(replace(request, rows=size))
        for start in range(0, min(max_rows, sampler.num_batches * size), size):
            continues = sampler.continues_previous
            yield ValidationRows(start, sampler.next_rows(size)[0], continues)

    @property
    def continues_previous(self) -> bool:
        """Whether the next batch continues the rows of the last one."""
        return self.cursor.row > 0

    @property
    def num_batches(self) -> int:
        """Number of batches per epoch."""
        sizes, template = [lane.size for lane in self.lanes], self.packer.template
        if self.packer.is_pair:
            return 1 + max(0, min(sizes) - template.length) // template.reuse_length
        return -(-max(sizes) // self.packer.capacity)  # rounded up

    def batches_in_epoch(self) -> int:
        return self.num_batches

    def next_rows(self, rows: int) -> tuple[RowSpans, np.ndarray]:
        """The next batch, and the epoch of each row."""
        assert rows == self.rows, "a contiguous sampler has a fixed number of rows"
        if not self.text.size:
            raise corpus_too_small()
        cursor = self.cursor
        parts = self._pairs(cursor) if self.packer.is_pair else self._windows(cursor)
        last = cursor.row + 1 >= self.num_batches
        self.cursor = Cursor(cursor.epoch + 1) if last else Cursor(cursor.epoch, 0, cursor.row + 1)
        return self._row_spans(parts), np.full(rows, cursor.epoch)

    def _windows(self, cursor: Cursor) -> list[list[LaneSpan]]:
        start = cursor.row * self.packer.capacity
        return [[LaneSpan(A, min(start, lane.size), min(start + self.packer.capacity, lane.size))]
                for lane in self.lanes]

    def _pairs(self, cursor: Cursor) -> list[list[LaneSpan]]:
        rng = np.random.default_rng([self.seed, cursor.epoch, cursor.row, 5])
        return [self._pair(lane, cursor.row * self.packer.template.reuse_length, rng.random(3)) for lane in self.lanes]

    def _pair(self, lane: Lane, start: int, uniform: np.ndarray) -> list[LaneSpan]:
        """The past, and A and B, which fill the rest of the window: A is whole sentences, B is cut at the end."""
        a_start = start + min(self.packer.template.reuse_length, lane.size // 2)
        max_length = min(self.packer.capacity, lane.size - a_start)
        uniform_a_stop, uniform_random_b, uniform_b_start = uniform
        sentences = self._sentence_starts(lane, a_start + 1, a_start + max_length - 1)
        a_stop = a_start + max_length - max_length // 2
        if len(sentences):
            a_stop = int(sentences[int(uniform_a_stop * len(sentences))])
        b_start, b_length = a_stop, self.packer.capacity - (a_stop - a_start)
        if uniform_random_b < RANDOM_B_PROBABILITY or a_stop + b_length > lane.size:
            b_length = min(b_length, lane.size)
            b_start = int(uniform_b_start * (lane.size - b_length + 1))
            sentences = self._sentence_starts(lane, max(0, b_start - self.packer.capacity), b_start)
            b_start = int(sentences[-1]) if len(sentences) else b_start
        return [LaneSpan(PAST, start, a_start), LaneSpan(A, a_start, a_stop), LaneSpan(B, b_start, b_start + b_length)]

    def _sentence_starts(self, lane: Lane, start: int, stop: int) -> np.ndarray:
        """Sentence starts in reading order; in a reversed lane these are the sentence ends of the text."""
        if stop < start:
            return np.zeros(0, dtype=np.int64)
        boundaries = self.text.boundaries(*lane.text_range(start, stop))
        return lane.stop - boundaries[::-1] if lane.is_reversed else boundaries - lane.start

    def _row_spans(self, rows: list[list[LaneSpan]]) -> RowSpans:
        """Spans in text order, part by part; packing reverses rows as a whole."""
        row_index = np.array([row for row, parts in enumerate(rows) for _ in parts], dtype=np.int64)
        part_ids = np.array([part.part for parts in rows for part in parts], dtype=np.int8)
        ranges = np.array([self.lanes[row].text_range(part.start, part.stop)
                           for row, parts in enumerate(rows) for part in parts], dtype=np.int64)
        range_index, start, length, after_separator = self.text.spans(*ranges.T)
        return RowSpans(self.rows, row_index[range_index], start, length, part_ids[range_index], after_separator,
                        continues_after=not self.packer.is_pair)
