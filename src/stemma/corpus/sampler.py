"""An endless stream of rows in a reproducible order that can be resumed at any row.

Documents are reshuffled each epoch. Blocks of about `BLOCK_TOKENS` tokens are packed and their rows shuffled, so memory
stays bounded for any corpus. The cursor is (epoch, block, row): restoring it packs one block and skips rows. Batches
continue across the end of a block or an epoch.
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
    """Position of the next row in the stream."""

    epoch: int = 0
    block: int = 0
    row: int = 0


@dataclass(frozen=True)
class SamplerRequest:
    """Arguments from which a sampler is created."""

    subset: CorpusSubset
    packer: Packer
    seed: int
    rows: int  # rows per step
    length: int  # sequence length
    num_static_copies: int | None = None  # number of masked copies with static masking; None: dynamic masking
    mixture_weights: Sequence[float] | None = None  # for each set of pairs; None: in proportion to its size
    reversed_rows: Callable[[int], np.ndarray | None] = lambda rows: None  # number of rows -> which are right-to-left


class ValidationRows(NamedTuple):
    """One validation batch."""

    seed: int  # of its random masking
    spans: RowSpans
    continues_previous: bool  # the rows continue those of the previous batch


class RowSamplerProtocol(Protocol):
    """Interface of all samplers; `corpus/packing_samplers.py` selects the one for a packing."""

    packer: Packer
    subset: CorpusSubset
    cursor: Cursor
    num_dropped: int  # documents that are too long for the window
    first_dropped: int | None  # first token of the first of them
    max_row_length: int  # length of the longest row, if rows are measured beforehand; otherwise 0

    @classmethod
    def from_request(cls, request: SamplerRequest) -> Self: ...

    @classmethod
    def validation_rows(cls, request: SamplerRequest, tokens: int, max_batch_tokens: int) -> Iterator[ValidationRows]:
        """Validation rows of about `tokens` tokens, in batches of at most `max_batch_tokens`; the same every time."""

    @property
    def continues_previous(self) -> bool:
        """Whether the next rows continue the last ones."""

    def next_rows(self, rows: int) -> tuple[RowSpans, np.ndarray]:
        """The next rows, and the epoch (or static copy) of each. A sampler that makes its own batches may return
        another number of rows."""

    def batches_in_epoch(self) -> int:
        """Number of batches in the first epoch."""


def corpus_too_small() -> UserError:
    return UserError("the corpus is too small to make a single example; give more text or set a shorter "
                     "corpus.sequence_length.")


class RowSampler:
    """Shuffled rows of one packing. With `num_static_copies` epoch e repeats epoch e mod `num_static_copies`."""

    continues_previous = False  # rows are independent
    num_dropped, max_row_length = 0, 0  # text that is too long is cut, not dropped
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
        spans = cls.from_request(request).first_rows(max(1, tokens // request.length))
        for start in range(0, spans.num_rows, size):
            yield ValidationRows(start, spans.select(np.arange(start, min(start + size, spans.num_rows))), False)

    def next_rows(self, rows: int) -> tuple[RowSpans, np.ndarray]:
        """The next rows, and the epoch (or static copy) of each."""
        parts: list[RowSpans] = []
        epochs: list[np.ndarray] = []
        empty_blocks = 0
        while rows:
            cursor = self.cursor
            spans, last = self._shuffled_block(cursor.epoch, cursor.block)
            count = min(rows, spans.num_rows - cursor.row)
            if count:
                parts.append(spans.select(np.arange(cursor.row, cursor.row + count)))
                epochs.append(np.full(count, self._copy_index(cursor.epoch)))
                rows -= count
                empty_blocks = 0
            if cursor.row + count < spans.num_rows:
                self.cursor = Cursor(cursor.epoch, cursor.block, cursor.row + count)
            else:
                self.cursor = Cursor(cursor.epoch + 1) if last else Cursor(cursor.epoch, cursor.block + 1)
                empty_blocks += count == 0
                if last and empty_blocks > cursor.block:
                    raise corpus_too_small()
        return RowSpans.concatenate(parts), np.concatenate(epochs)

    def first_rows(self, max_rows: int) -> RowSpans:
        """Up to `max_rows` rows from the beginning of epoch 0, for validation."""
        spans, _ = self._shuffled_block(0, 0)
        return spans.select(np.arange(min(max_rows, spans.num_rows)))

    def batches_in_epoch(self) -> int:
        """Number of batches in epoch 0; other epochs differ slightly."""
        count, block, last = 0, 0, False
        while not last:
            spans, last = self._shuffled_block(0, block)
            count, block = count + spans.num_rows, block + 1
        return -(-count // self.rows)

    def _copy_index(self, epoch: int) -> int:
        return epoch if self.num_static_copies is None else epoch % self.num_static_copies

    def _shuffled_block(self, epoch: int, block: int) -> tuple[RowSpans, bool]:
        """The shuffled rows of one block, and whether it is the last of the epoch."""
        if self._current_block is None or self._current_block[:2] != (epoch, block):
            copy_index = self._copy_index(epoch)
            order = self._order(copy_index)
            start, stop = self.subset.document_ranges[order].T
            sizes = stop - start
            block_index = (np.cumsum(sizes) - sizes) // BLOCK_TOKENS  # the block of each document
            block_ids = np.unique(block_index)
            documents = order[block_index == block_ids[block]] if len(block_ids) else order
            rng = np.random.default_rng([self.seed, copy_index, 2, block])
            rows = self._arrange(self.packer.pack(self._sentence_bounds(documents), rng), rng)
            self._current_block = (epoch, block, rows, block + 1 >= len(block_ids))
        return self._current_block[2], self._current_block[3]

    def _order(self, copy_index: int) -> np.ndarray:
        """Document indices of an epoch, in order."""
        return np.random.default_rng([self.seed, copy_index, 1]).permutation(len(self.subset.document_ranges))

    def _arrange(self, spans: RowSpans, rng: np.random.Generator) -> RowSpans:
        """Put the rows of a block in the order of the stream."""
        return spans.select(rng.permutation(spans.num_rows))

    def _sentence_bounds(self, documents: np.ndarray) -> list[np.ndarray]:
        """Sentence bounds of each document, equal to `CorpusSubset.sentence_bounds` but vectorised: a document starts
        with a sentence and ends where the next sentence starts."""
        sentences = np.asarray(self.subset.corpus.sentence_starts)
        edges = np.searchsorted(sentences, self.subset.document_ranges[documents])
        return [sentences[first:last + 1] for first, last in edges.tolist()]
