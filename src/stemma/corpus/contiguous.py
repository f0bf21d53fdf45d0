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

from stemma.corpus.feed import Demand, HeldOutRows, Position, too_small
from stemma.corpus.packers import Packing
from stemma.corpus.pieces import Pieces
from stemma.corpus.view import View
from stemma.registry import register
from stemma.schema.corpus import PackingSettings

A, B, PAST = 0, 1, 2  # parts of a row
SEGMENTS = 4  # windows that a held-out column should have at least, so that a memory comes into play
ELSEWHERE = 0.5  # how often B does not go on from A, as in the authors' code


class RunningText:
    """The documents of a view in their order, one separator between two of them where there is a token for it. Places
    count through tokens and separators; nothing is copied."""

    def __init__(self, view: View, separated: bool):
        self.view = view
        self.gap = int(separated)
        sizes = view.documents[:, 1] - view.documents[:, 0] + self.gap
        self.first = np.cumsum(sizes) - sizes  # (D,) place of each document's first token
        self.size = max(0, int(sizes.sum()) - self.gap)

    def pieces(self, start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, ...]:
        """Stretches of places as pieces: which stretch each belongs to, its token offset, its length, and whether a
        separator stands before it. A stretch that ends with a separator ends with a piece of no length."""
        separators = self.first - self.gap
        first = np.searchsorted(separators, start, side="right") - 1
        counts = np.maximum(np.searchsorted(separators, stop) - first, 0) * (stop > start)
        stretch = np.repeat(np.arange(len(start)), counts)
        document = first[stretch] + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        begins, ends = self.view.documents[document].T
        low = np.maximum(start[stretch], self.first[document])
        high = np.minimum(stop[stretch], self.first[document] + ends - begins)
        return stretch, begins + low - self.first[document], high - low, start[stretch] < self.first[document]

    def bounds(self, start: int, stop: int) -> np.ndarray:
        """The places from `start` to `stop` at which a sentence or a separator begins."""
        documents, sentences = self.view.documents, self.view.corpus.sentences
        inside = slice(max(0, int(np.searchsorted(self.first, start, side="right")) - 1),
                       int(np.searchsorted(self.first, stop, side="right")))
        edges = np.searchsorted(sentences, [documents[inside][0, 0], documents[inside][-1, 1]])
        begins = sentences[edges[0]:edges[1]]
        owner = np.searchsorted(documents[:, 0], begins, side="right") - 1
        kept = begins < documents[owner, 1]  # what lies between may be held out
        places = self.first[owner[kept]] + begins[kept] - documents[owner[kept], 0]
        found = np.unique(np.concatenate([places, self.first[inside] - self.gap]))
        return found[(found >= start) & (found <= stop)]


class Column(NamedTuple):
    """A stretch of running text, read from its beginning or from its end."""

    start: int
    stop: int
    backward: bool

    @property
    def size(self) -> int:
        return self.stop - self.start

    def stretch(self, start: int, stop: int) -> tuple[int, int]:
        """From places counted along the reading to places of the text."""
        if self.backward:
            return self.stop - stop, self.stop - start
        return self.start + start, self.start + stop


class Part(NamedTuple):
    """What one part of a row reads: from `start` to `stop`, counted along its column."""

    part: int
    start: int
    stop: int


class Contiguous(PackingSettings):
    contiguous = True


class ContiguousPair(PackingSettings):
    contiguous = True
    paired = True
    past = 0.5


@register("packing", "contiguous", Contiguous)
@register("packing", "contiguous_pair", ContiguousPair)
class ContiguousFeed:
    """Endless batches of a fixed number of rows. A position is (epoch, 0, batch); each epoch begins at the columns'
    beginnings. A text too short for so many columns of one window has fewer, which several rows share."""

    left_out, longest = 0, 0  # whatever is too long is cut
    first_left_out: int | None = None

    def __init__(self, view: View, packing: Packing, seed: int, rows: int, backward: np.ndarray | None = None):
        self.view = view
        self.packing = packing
        self.seed = seed
        self.rows = rows
        self.backward = np.zeros(rows, dtype=bool) if backward is None else backward
        self.position = Position()
        self.text = RunningText(view, packing.layout.separated)
        self.distinct = max(1, min(rows, self.text.size // packing.layout.length))
        edges = [number * self.text.size // self.distinct for number in range(self.distinct + 1)]
        self.columns = [Column(edges[row % self.distinct], edges[row % self.distinct + 1], bool(self.backward[row]))
                        for row in range(rows)]

    @classmethod
    def of(cls, demand: Demand) -> Self:
        return cls(demand.view, demand.packing, demand.seed, demand.rows, demand.backward(demand.rows))

    @classmethod
    def held_out(cls, demand: Demand, tokens: int, at_once: int) -> Iterator[HeldOutRows]:
        length, most = demand.length, max(1, tokens // demand.length)
        size = max(1, min(demand.rows, at_once // length, demand.view.tokens // (SEGMENTS * length)))
        feed = cls.of(replace(demand, rows=size))
        for start in range(0, min(most, feed.batches * size), size):
            continues = feed.continues
            yield HeldOutRows(start, feed.take(size)[0], continues)

    @property
    def continues(self) -> bool:
        """Whether the rows taken next go on from those taken last."""
        return self.position.row > 0

    @property
    def batches(self) -> int:
        """How many batches an epoch has."""
        layout, longest = self.packing.layout, max(column.size for column in self.columns)
        if self.packing.paired:
            return 1 + max(0, min(column.size for column in self.columns) - layout.length) // layout.past
        return -(-longest // self.packing.capacity)

    def batches_in_epoch(self) -> int:
        return self.batches

    def take(self, rows: int) -> tuple[Pieces, np.ndarray]:
        """The next batch, and the epoch that each row belongs to."""
        assert rows == self.rows, "the number of rows is that of the columns"
        if not self.text.size:
            raise too_small()
        at = self.position
        parts = self._pairs(at) if self.packing.paired else self._windows(at)
        self.position = Position(at.epoch, 0, at.row + 1) if at.row + 1 < self.batches else Position(at.epoch + 1)
        return self._pieces(parts), np.full(rows, at.epoch)

    def _windows(self, at: Position) -> list[list[Part]]:
        start = at.row * self.packing.capacity
        return [[Part(A, min(start, column.size), min(start + self.packing.capacity, column.size))]
                for column in self.columns]

    def _pairs(self, at: Position) -> list[list[Part]]:
        rng = np.random.default_rng([self.seed, at.epoch, at.row, 5])
        return [self._pair(column, at.row * self.packing.layout.past, rng.random(3)) for column in self.columns]

    def _pair(self, column: Column, start: int, uniform: np.ndarray) -> list[Part]:
        """The past, and then A and B, which together fill the window: A is whole sentences, B is cut where it ends."""
        begin = start + min(self.packing.layout.past, column.size // 2)
        room = min(self.packing.capacity, column.size - begin)
        cut, elsewhere, where = uniform
        ends = self._bounds(column, begin + 1, begin + room - 1)
        middle = int(ends[int(cut * len(ends))]) if len(ends) else begin + room - room // 2
        length = self.packing.capacity - (middle - begin)
        second = middle
        if elsewhere < ELSEWHERE or middle + length > column.size:
            length = min(length, column.size)
            second = int(where * (column.size - length + 1))
            sentences = self._bounds(column, max(0, second - self.packing.capacity), second)
            second = int(sentences[-1]) if len(sentences) else second
        return [Part(PAST, start, begin), Part(A, begin, middle), Part(B, second, second + length)]

    def _bounds(self, column: Column, start: int, stop: int) -> np.ndarray:
        """Where a sentence begins, in the order of reading: backward, that is where it ends in the text."""
        if stop < start:
            return np.zeros(0, dtype=np.int64)
        found = self.text.bounds(*column.stretch(start, stop))
        return column.stop - found[::-1] if column.backward else found - column.start

    def _pieces(self, rows: list[list[Part]]) -> Pieces:
        """In the order of the text, part by part; the draft turns backward rows as a whole."""
        owner = np.array([row for row, parts in enumerate(rows) for _ in parts], dtype=np.int64)
        number = np.array([part.part for parts in rows for part in parts], dtype=np.int8)
        stretches = np.array([self.columns[row].stretch(part.start, part.stop)
                              for row, parts in enumerate(rows) for part in parts], dtype=np.int64)
        stretch, start, length, gap = self.text.pieces(*stretches.T)
        return Pieces(self.rows, owner[stretch], start, length, number[stretch], gap,
                      running=not self.packing.paired)
