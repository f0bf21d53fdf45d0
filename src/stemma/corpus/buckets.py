"""Batches of rows of similar length, counted by the places they fill: long rows are few and short rows many.

Rows that stand side by side are filled up to the longest, so rows of any length side by side would mostly be filling
(Attention Is All You Need, arXiv:1706.03762, section 5.1, batches pairs by their approximate length). Each block is
sorted by length, roughly, so that no two epochs make the same batches; cut; and its batches are shuffled.

Pairs from several sources may be drawn at rates of one's own choosing, such as T5's (arXiv:1910.10683, section 3.5.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np

from stemma.corpus.feed import Demand, Feed, HeldOutRows, Position, too_small
from stemma.corpus.packers import Packing
from stemma.corpus.pieces import Pieces
from stemma.corpus.view import View
from stemma.errors import UserError
from stemma.schema.corpus import packing_of

JITTER = 0.02  # share of its length by which a row may seem longer than it is


def mixture_rates(counts: Sequence[int], temperature: float = 1.0, limit: int | None = None,
                  weights: Sequence[float] | None = None) -> list[float]:
    """How often each group is drawn: in proportion to its size, of which no more than `limit` counts; the higher the
    temperature, the more alike. `weights` multiply that."""
    sizes = np.minimum(np.asarray(counts, float), np.inf if limit is None else limit)
    scaled = np.where(sizes > 0, sizes ** (1 / temperature), 0) * np.asarray(1.0 if weights is None else weights)
    shares: list[float] = (scaled / scaled.sum()).tolist()
    return shares


class BucketFeed(Feed):
    """Endless batches of at most `places` places a side: rows x the longest row. (A single row longer than that is
    still a batch.) A position is (epoch, block, batch).

    With `rates`, one for each of the corpus's groups, an epoch still has as many pairs as the view, but each group has
    its share of them: it goes through its pairs in a random order, and when it has used them up, through them anew,
    from wherever the epoch before left it."""

    def __init__(self, view: View, packing: Packing, seed: int, places: int, copies: int | None = None,
                 rates: Sequence[float] | None = None):
        paired = packing_of(packing.kind).reads == "pairs"
        sizes = _pair_sizes(view, packing) if paired else np.ones(len(view.documents), np.int64)
        fits = sizes <= packing.layout.length
        super().__init__(View(view.corpus, view.documents[fits]), packing, seed, copies)
        self.left_out = int((~fits).sum())  # pairs that are too long for the window
        self.first_left_out = int(view.documents[np.argmin(fits), 0]) if self.left_out else None  # its first token
        self.longest = int(sizes[fits].max(initial=0))  # places of the longest pair that is not
        self.places = places
        self._edges = np.zeros(1, np.int64)  # of the batches in the block that was packed last
        self._groups = None if rates is None else self._members(rates)

    @classmethod
    def of(cls, demand: Demand) -> Self:
        return cls(demand.view, demand.packing, demand.seed, demand.rows * demand.length, demand.copies, demand.rates)

    @classmethod
    def held_out(cls, demand: Demand, tokens: int, at_once: int) -> Iterator[HeldOutRows]:
        feed = cls(demand.view, demand.packing, demand.seed, min(demand.rows * demand.length, at_once))
        for number, alike in enumerate(feed.batches(tokens)):
            yield HeldOutRows(number, alike, False)

    def take(self, rows: int = 0) -> tuple[Pieces, np.ndarray]:
        """The next batch, whatever its number of rows, and the epoch (or masked copy) that each row belongs to."""
        if not len(self.view.documents):
            raise self._nothing()
        at = self.position
        pieces, last = self._block(at.epoch, at.block)
        batch = _stretch(pieces, *self._edges[at.row:at.row + 2])
        if at.row + 2 < len(self._edges):
            self.position = Position(at.epoch, at.block, at.row + 1)
        else:
            self.position = Position(at.epoch + 1) if last else Position(at.epoch, at.block + 1)
        return batch, np.full(batch.rows, self._draw(at.epoch))

    def batches(self, most_places: int) -> list[Pieces]:
        """The batches of epoch 0 from its beginning on, until they fill so many places; at least one. For validation:
        being shuffled, the first of them are as long and as short as all."""
        if not len(self.view.documents):
            return []
        pieces, _ = self._block(0, 0)
        sizes = np.maximum.reduceat(self._sizes(pieces), self._edges[:-1]) * np.diff(self._edges)
        count = max(1, int(np.searchsorted(np.cumsum(sizes), most_places, side="right")))
        return [_stretch(pieces, *self._edges[number:number + 2]) for number in range(min(count, len(sizes)))]

    def batches_in_epoch(self) -> int:
        """How many batches epoch 0 has; the others have about as many."""
        count, block, last = 0, 0, not len(self.view.documents)
        while not last:
            _, last = self._block(0, block)
            count, block = count + len(self._edges) - 1, block + 1
        return count

    def _nothing(self) -> UserError:
        if not self.left_out:
            return too_small()
        return UserError(f"none of the {self.left_out:,} pairs fits a sequence_length of {self.packing.layout.length}; "
                         "set corpus.sequence_length higher.")

    def _sizes(self, pieces: Pieces) -> np.ndarray:
        return self.packing.sizes(pieces.part_lengths(0), pieces.part_lengths(1))

    def _arrange(self, pieces: Pieces, rng: np.random.Generator) -> Pieces:
        sizes = self._sizes(pieces)
        seeming = (sizes * (1 + JITTER * rng.random(pieces.rows)) + rng.random(pieces.rows)).astype(np.int64)
        # Among rows that are equally long, those whose other side is alike stand together.
        other = pieces.part_lengths(0) - pieces.part_lengths(1) + rng.random(pieces.rows)
        order = np.lexsort((other, seeming))
        edges = self._cut(sizes[order])
        shuffled = rng.permutation(len(edges) - 1)
        counts = np.diff(edges)[shuffled]
        self._edges = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(pieces.rows) - np.repeat(self._edges[:-1], counts)
        return pieces.select(order[np.repeat(edges[shuffled], counts) + within])

    def _cut(self, sizes: np.ndarray) -> np.ndarray:
        """The edges of batches of rows in this order, each as large as `places` allows."""
        edges = [0]
        while (start := edges[-1]) < len(sizes):
            longest = np.maximum.accumulate(sizes[start:start + max(1, self.places // int(sizes[start]))])
            filled = longest * np.arange(1, len(longest) + 1)
            edges.append(start + max(1, int(np.searchsorted(filled, self.places, side="right"))))
        return np.array(edges)

    def _members(self, rates: Sequence[float]) -> list[tuple[np.ndarray, int]]:
        """Of each group, the numbers of its documents in this view, and how many of them an epoch takes."""
        groups = self.view.corpus.manifest.get("groups", [])
        if len(rates) != len(groups) or min(rates, default=0) < 0 or not any(rates):
            raise UserError(f"{len(rates)} rates for {len(groups)} groups of pairs; give each group a rate of 0 or "
                            "more, and not 0 to all.")
        number = np.searchsorted(self.view.corpus.documents, self.view.documents[:, 0])
        owner = np.searchsorted([group["first"] for group in groups], number, side="right") - 1
        members = [np.flatnonzero(owner == group) for group in range(len(groups))]
        shares = np.array([rate if len(found) else 0.0 for rate, found in zip(rates, members, strict=True)])
        if not shares.sum():
            raise self._nothing()
        ends = np.rint(np.cumsum(shares) / shares.sum() * len(number)).astype(int)  # so that they add up
        return list(zip(members, np.diff(ends, prepend=0).tolist(), strict=True))

    def _order(self, draw: int) -> np.ndarray:
        if self._groups is None:
            return super()._order(draw)
        parts = [self._drawn(group, members, draw * count, (draw + 1) * count)
                 for group, (members, count) in enumerate(self._groups) if count]
        return np.random.default_rng([self.seed, draw, 1]).permutation(np.concatenate(parts))

    def _drawn(self, group: int, members: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Documents `start` to `stop` of an endless series: all of the group in a random order, then all anew."""
        size = len(members)
        rounds = range(start // size, -(-stop // size))
        series = [np.random.default_rng([self.seed, group, turn, 6]).permutation(members) for turn in rounds]
        return np.concatenate(series)[start - rounds[0] * size:][:stop - start]


def _pair_sizes(view: View, packing: Packing) -> np.ndarray:
    """(D,) the places that each document needs as a pair; more than there are, where it is none."""
    sentences = np.asarray(view.corpus.sentences)
    first, last = np.searchsorted(sentences, view.documents).T
    middle = sentences[np.minimum(first + 1, last)]
    start, stop = view.documents.T
    sizes = packing.sizes(middle - start, stop - middle)
    return np.where(last - first == 2, sizes, np.iinfo(sizes.dtype).max)


def _stretch(pieces: Pieces, start: int, stop: int) -> Pieces:
    """Neighbouring rows: what `select` gives, at the cost of a batch and not of a block."""
    here = slice(*np.searchsorted(pieces.row, [start, stop]))
    return Pieces(int(stop - start), pieces.row[here] - start, pieces.start[here], pieces.length[here],
                  pieces.part[here], pieces.gap[here], pieces.running)
