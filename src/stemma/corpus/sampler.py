"""An endless stream of rows in a reproducible order that can be left and taken up again at any row.

Documents are shuffled anew each epoch; some millions of tokens at a time are packed and their rows shuffled, so memory
stays bounded whatever the corpus. A position in the stream is three numbers (epoch, block, row): restoring it packs
one block again and skips. Batches simply go on over the end of a block or an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np

from stemma.corpus.packers import Packer
from stemma.corpus.row_spans import RowSpans
from stemma.corpus.subset import CorpusSubset
from stemma.errors import UserError

BLOCK_TOKENS = 2_000_000


@dataclass(frozen=True)
class Cursor:
    epoch: int = 0
    block: int = 0
    row: int = 0


@dataclass(frozen=True)
class SamplerRequest:
    """What a feed is made from."""

    subset: CorpusSubset
    packer: Packer
    seed: int
    rows: int  # of a step
    length: int  # of a row
    num_static_copies: int | None = None  # of static data
    mixture_weights: Sequence[float] | None = None  # how often each group of pairs is drawn; None: as often as there
    #                                                 are of them
    reversed_rows: Callable[[int], np.ndarray | None] = lambda rows: None  # of so many rows, those read from their end


class ValidationRows(NamedTuple):
    seed: int  # by which their randomness is drawn
    spans: RowSpans
    continues_previous: bool  # they go on from the rows before


class RowSamplerProtocol(Protocol):
    """What every feed can do, whatever its packing: `corpus/packing_samplers.py` finds the one of a packing."""

    packer: Packer
    subset: CorpusSubset
    cursor: Cursor
    num_dropped: int  # documents that are too long for the window
    first_dropped: int | None  # the first token of the first of them
    max_row_length: int  # places of the longest row, where rows are counted beforehand

    @classmethod
    def from_request(cls, request: SamplerRequest) -> Self: ...

    @classmethod
    def validation_rows(cls, request: SamplerRequest, tokens: int, max_batch_tokens: int) -> Iterator[ValidationRows]:
        """About so many tokens of rows for validation, in batches of at most `at_once`; the same each time."""

    @property
    def continues_previous(self) -> bool:
        """Whether the rows taken next go on from those taken last."""

    def next_rows(self, rows: int) -> tuple[RowSpans, np.ndarray]:
        """The next rows, and the epoch (or masked copy) that each belongs to. A feed that makes its own batches has
        its own mind of how many."""

    def batches_in_epoch(self) -> int:
        """How many batches the first epoch has."""


def corpus_too_small() -> UserError:
    return UserError("the corpus is too small to make a single example; give more text or set a shorter "
                     "corpus.sequence_length.")


class RowSampler:
    """Rows of one packing, from one view. `copies` makes the data static: epoch e packs as epoch e mod copies did."""

    continues_previous = False  # rows stand alone: none goes on from one taken before
    num_dropped, max_row_length = 0, 0  # whatever is too long is cut
    first_dropped: int | None = None

    def __init__(self, subset: CorpusSubset, packer: Packer, seed: int, num_static_copies: int | None = None,
                 rows: int = 1):
        self.subset = subset
        self.packer = packer
        self.seed = seed
        self.num_static_copies = num_static_copies
        self.rows = rows
        self.cursor = Cursor()
        self._current_block: tuple[int, int, RowSpans, bool] | None = None

    @classmethod
    def from_request(cls, request: SamplerRequest) -> Self:
        return cls(request.subset, request.packer, request.seed, request.num_static_copies, request.rows)

    @classmethod
    def validation_rows(cls, request: SamplerRequest, tokens: int, max_batch_tokens: int) -> Iterator[ValidationRows]:
        size = max(1, min(request.rows, max_batch_tokens // request.length))
        pieces = cls.from_request(request).first_rows(max(1, tokens // request.length))
        for start in range(0, pieces.num_rows, size):
            yield ValidationRows(start, pieces.select(np.arange(start, min(start + size, pieces.num_rows))), False)

    def next_rows(self, rows: int) -> tuple[RowSpans, np.ndarray]:
        """The next rows, and the epoch (or masked copy) that each belongs to."""
        parts: list[RowSpans] = []
        epochs: list[np.ndarray] = []
        empty_blocks = 0
        while rows:
            at = self.cursor
            pieces, last = self._shuffled_block(at.epoch, at.block)
            count = min(rows, pieces.num_rows - at.row)
            if count:
                parts.append(pieces.select(np.arange(at.row, at.row + count)))
                epochs.append(np.full(count, self._copy_index(at.epoch)))
                rows -= count
                empty_blocks = 0
            if at.row + count < pieces.num_rows:
                self.cursor = Cursor(at.epoch, at.block, at.row + count)
            else:
                self.cursor = Cursor(at.epoch + 1) if last else Cursor(at.epoch, at.block + 1)
                empty_blocks += count == 0
                if last and empty_blocks > at.block:
                    raise corpus_too_small()
        return RowSpans.concatenate(parts), np.concatenate(epochs)

    def first_rows(self, max_rows: int) -> RowSpans:
        """Up to `most` rows from the beginning of epoch 0, for validation."""
        pieces, _ = self._shuffled_block(0, 0)
        return pieces.select(np.arange(min(max_rows, pieces.num_rows)))

    def batches_in_epoch(self) -> int:
        """How many batches epoch 0 has; the others have about as many."""
        count, block, last = 0, 0, False
        while not last:
            pieces, last = self._shuffled_block(0, block)
            count, block = count + pieces.num_rows, block + 1
        return -(-count // self.rows)

    def _copy_index(self, epoch: int) -> int:
        return epoch if self.num_static_copies is None else epoch % self.num_static_copies

    def _shuffled_block(self, epoch: int, block: int) -> tuple[RowSpans, bool]:
        """The shuffled rows of one block, and whether it is the epoch's last."""
        if self._current_block is None or self._current_block[:2] != (epoch, block):
            draw = self._copy_index(epoch)
            order = self._order(draw)
            start, stop = self.subset.document_ranges[order].T
            sizes = stop - start
            owner = (np.cumsum(sizes) - sizes) // BLOCK_TOKENS  # which block each document falls into
            numbers = np.unique(owner)
            chosen = order[owner == numbers[block]] if len(numbers) else order
            rng = np.random.default_rng([self.seed, draw, 2, block])
            rows = self._arrange(self.packer.pack(self._sentence_bounds(chosen), rng), rng)
            self._current_block = (epoch, block, rows, block + 1 >= len(numbers))
        return self._current_block[2], self._current_block[3]

    def _order(self, copy_index: int) -> np.ndarray:
        """The documents of an epoch, by their number in the view."""
        return np.random.default_rng([self.seed, copy_index, 1]).permutation(len(self.subset.document_ranges))

    def _arrange(self, spans: RowSpans, rng: np.random.Generator) -> RowSpans:
        """The rows of a block in the order in which they are taken."""
        return spans.select(rng.permutation(spans.num_rows))

    def _sentence_bounds(self, documents: np.ndarray) -> list[np.ndarray]:
        """The sentence bounds of each document, as View.bounds gives them, but found all at once: a document begins
        with a sentence and ends where the next one begins."""
        sentences = np.asarray(self.subset.corpus.sentence_starts)
        edges = np.searchsorted(sentences, self.subset.document_ranges[documents])
        return [sentences[first:last + 1] for first, last in edges.tolist()]
