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

from stemma.corpus.packers import Packing
from stemma.corpus.pieces import Pieces
from stemma.corpus.view import View
from stemma.errors import UserError

BLOCK_TOKENS = 2_000_000


@dataclass(frozen=True)
class Position:
    epoch: int = 0
    block: int = 0
    row: int = 0


@dataclass(frozen=True)
class Demand:
    """What a feed is made from."""

    view: View
    packing: Packing
    seed: int
    rows: int  # of a step
    length: int  # of a row
    copies: int | None = None  # of static data
    rates: Sequence[float] | None = None  # how often each group of pairs is drawn; None: as often as there are of them
    backward: Callable[[int], np.ndarray | None] = lambda rows: None  # of so many rows, those read from their end


class HeldOutRows(NamedTuple):
    number: int  # by which their randomness is drawn
    pieces: Pieces
    continues: bool  # they go on from the rows before


class AnyFeed(Protocol):
    """What every feed can do, whatever its packing: `corpus/feeds.py` finds the one of a packing."""

    packing: Packing
    view: View
    position: Position
    left_out: int  # documents that are too long for the window
    first_left_out: int | None  # the first token of the first of them
    longest: int  # places of the longest row, where rows are counted beforehand

    @classmethod
    def of(cls, demand: Demand) -> Self: ...

    @classmethod
    def held_out(cls, demand: Demand, tokens: int, at_once: int) -> Iterator[HeldOutRows]:
        """About so many tokens of rows for validation, in batches of at most `at_once`; the same each time."""

    @property
    def continues(self) -> bool:
        """Whether the rows taken next go on from those taken last."""

    def take(self, rows: int) -> tuple[Pieces, np.ndarray]:
        """The next rows, and the epoch (or masked copy) that each belongs to. A feed that makes its own batches has
        its own mind of how many."""

    def batches_in_epoch(self) -> int:
        """How many batches the first epoch has."""


def too_small() -> UserError:
    return UserError("the corpus is too small to make a single example; give more text or set a shorter "
                     "corpus.sequence_length.")


class Feed:
    """Rows of one packing, from one view. `copies` makes the data static: epoch e packs as epoch e mod copies did."""

    continues = False  # rows stand alone: none goes on from one taken before
    left_out, longest = 0, 0  # whatever is too long is cut
    first_left_out: int | None = None

    def __init__(self, view: View, packing: Packing, seed: int, copies: int | None = None, rows: int = 1):
        self.view = view
        self.packing = packing
        self.seed = seed
        self.copies = copies
        self.rows = rows
        self.position = Position()
        self._packed: tuple[int, int, Pieces, bool] | None = None

    @classmethod
    def of(cls, demand: Demand) -> Self:
        return cls(demand.view, demand.packing, demand.seed, demand.copies, demand.rows)

    @classmethod
    def held_out(cls, demand: Demand, tokens: int, at_once: int) -> Iterator[HeldOutRows]:
        size = max(1, min(demand.rows, at_once // demand.length))
        pieces = cls.of(demand).all_rows(max(1, tokens // demand.length))
        for start in range(0, pieces.rows, size):
            yield HeldOutRows(start, pieces.select(np.arange(start, min(start + size, pieces.rows))), False)

    def take(self, rows: int) -> tuple[Pieces, np.ndarray]:
        """The next rows, and the epoch (or masked copy) that each belongs to."""
        parts: list[Pieces] = []
        epochs: list[np.ndarray] = []
        empty_blocks = 0
        while rows:
            at = self.position
            pieces, last = self._block(at.epoch, at.block)
            count = min(rows, pieces.rows - at.row)
            if count:
                parts.append(pieces.select(np.arange(at.row, at.row + count)))
                epochs.append(np.full(count, self._draw(at.epoch)))
                rows -= count
                empty_blocks = 0
            if at.row + count < pieces.rows:
                self.position = Position(at.epoch, at.block, at.row + count)
            else:
                self.position = Position(at.epoch + 1) if last else Position(at.epoch, at.block + 1)
                empty_blocks += count == 0
                if last and empty_blocks > at.block:
                    raise too_small()
        return Pieces.join(parts), np.concatenate(epochs)

    def all_rows(self, most: int) -> Pieces:
        """Up to `most` rows from the beginning of epoch 0, for validation."""
        pieces, _ = self._block(0, 0)
        return pieces.select(np.arange(min(most, pieces.rows)))

    def batches_in_epoch(self) -> int:
        """How many batches epoch 0 has; the others have about as many."""
        count, block, last = 0, 0, False
        while not last:
            pieces, last = self._block(0, block)
            count, block = count + pieces.rows, block + 1
        return -(-count // self.rows)

    def _draw(self, epoch: int) -> int:
        return epoch if self.copies is None else epoch % self.copies

    def _block(self, epoch: int, block: int) -> tuple[Pieces, bool]:
        """The shuffled rows of one block, and whether it is the epoch's last."""
        if self._packed is None or self._packed[:2] != (epoch, block):
            draw = self._draw(epoch)
            order = self._order(draw)
            start, stop = self.view.documents[order].T
            sizes = stop - start
            owner = (np.cumsum(sizes) - sizes) // BLOCK_TOKENS  # which block each document falls into
            numbers = np.unique(owner)
            chosen = order[owner == numbers[block]] if len(numbers) else order
            rng = np.random.default_rng([self.seed, draw, 2, block])
            rows = self._arrange(self.packing.pack(self._bounds(chosen), rng), rng)
            self._packed = (epoch, block, rows, block + 1 >= len(numbers))
        return self._packed[2], self._packed[3]

    def _order(self, draw: int) -> np.ndarray:
        """The documents of an epoch, by their number in the view."""
        return np.random.default_rng([self.seed, draw, 1]).permutation(len(self.view.documents))

    def _arrange(self, pieces: Pieces, rng: np.random.Generator) -> Pieces:
        """The rows of a block in the order in which they are taken."""
        return pieces.select(rng.permutation(pieces.rows))

    def _bounds(self, documents: np.ndarray) -> list[np.ndarray]:
        """The sentence bounds of each document, as View.bounds gives them, but found all at once: a document begins
        with a sentence and ends where the next one begins."""
        sentences = np.asarray(self.view.corpus.sentences)
        edges = np.searchsorted(sentences, self.view.documents[documents])
        return [sentences[first:last + 1] for first, last in edges.tolist()]
