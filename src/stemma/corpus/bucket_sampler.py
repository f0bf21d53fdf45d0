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

from stemma.corpus.packers import Packer
from stemma.corpus.row_spans import RowSpans
from stemma.corpus.sampler import Cursor, RowSampler, SamplerRequest, ValidationRows, corpus_too_small
from stemma.corpus.subset import CorpusSubset
from stemma.errors import UserError
from stemma.schema.corpus import packing_settings

LENGTH_JITTER = 0.02  # share of its length by which a row may seem longer than it is


def mixture_weights(counts: Sequence[int], temperature: float = 1.0, max_examples: int | None = None,
                  multipliers: Sequence[float] | None = None) -> list[float]:
    """How often each group is drawn: in proportion to its size, of which no more than `limit` counts; the higher the
    temperature, the more alike. `weights` multiply that."""
    sizes = np.minimum(np.asarray(counts, float), np.inf if max_examples is None else max_examples)
    scaled = np.where(sizes > 0, sizes ** (1 / temperature), 0) * np.asarray(1.0 if multipliers is None
                                                                             else multipliers)
    shares: list[float] = (scaled / scaled.sum()).tolist()
    return shares


class BucketSampler(RowSampler):
    """Endless batches of at most `places` places a side: rows x the longest row. (A single row longer than that is
    still a batch.) A position is (epoch, block, batch).

    With `rates`, one for each of the corpus's groups, an epoch still has as many pairs as the view, but each group has
    its share of them: it goes through its pairs in a random order, and when it has used them up, through them anew,
    from wherever the epoch before left it."""

    def __init__(self, view: CorpusSubset, packing: Packer, seed: int, max_batch_tokens: int, copies: int | None = None,
                 mixture_weights: Sequence[float] | None = None):
        paired = packing_settings(packing.kind).reads == "pairs"
        sizes = _pair_lengths(view, packing) if paired else np.ones(len(view.document_ranges), np.int64)
        fits = sizes <= packing.template.length
        super().__init__(CorpusSubset(view.corpus, view.document_ranges[fits]), packing, seed, copies)
        self.num_dropped = int((~fits).sum())  # pairs that are too long for the window
        # its first token
        self.first_dropped = int(view.document_ranges[np.argmin(fits), 0]) if self.num_dropped else None
        self.max_row_length = int(sizes[fits].max(initial=0))  # places of the longest pair that is not
        self.max_batch_tokens = max_batch_tokens
        self._edges = np.zeros(1, np.int64)  # of the batches in the block that was packed last
        self._groups = None if mixture_weights is None else self._documents_by_set(mixture_weights)

    @classmethod
    def from_request(cls, request: SamplerRequest) -> Self:
        return cls(request.subset, request.packer, request.seed, request.rows * request.length,
                   request.num_static_copies, request.mixture_weights)

    @classmethod
    def validation_rows(cls, request: SamplerRequest, tokens: int, max_batch_tokens: int) -> Iterator[ValidationRows]:
        feed = cls(request.subset, request.packer, request.seed, min(request.rows * request.length, max_batch_tokens))
        for number, alike in enumerate(feed.first_batches(tokens)):
            yield ValidationRows(number, alike, False)

    def next_rows(self, rows: int = 0) -> tuple[RowSpans, np.ndarray]:
        """The next batch, whatever its number of rows, and the epoch (or masked copy) that each row belongs to."""
        if not len(self.subset.document_ranges):
            raise self._empty_error()
        at = self.cursor
        pieces, last = self._shuffled_block(at.epoch, at.block)
        batch = _slice_rows(pieces, *self._edges[at.row:at.row + 2])
        if at.row + 2 < len(self._edges):
            self.cursor = Cursor(at.epoch, at.block, at.row + 1)
        else:
            self.cursor = Cursor(at.epoch + 1) if last else Cursor(at.epoch, at.block + 1)
        return batch, np.full(batch.num_rows, self._copy_index(at.epoch))

    def first_batches(self, max_tokens: int) -> list[RowSpans]:
        """The batches of epoch 0 from its beginning on, until they fill so many places; at least one. For validation:
        being shuffled, the first of them are as long and as short as all."""
        if not len(self.subset.document_ranges):
            return []
        pieces, _ = self._shuffled_block(0, 0)
        sizes = np.maximum.reduceat(self._row_lengths(pieces), self._edges[:-1]) * np.diff(self._edges)
        count = max(1, int(np.searchsorted(np.cumsum(sizes), max_tokens, side="right")))
        return [_slice_rows(pieces, *self._edges[number:number + 2]) for number in range(min(count, len(sizes)))]

    def batches_in_epoch(self) -> int:
        """How many batches epoch 0 has; the others have about as many."""
        count, block, last = 0, 0, not len(self.subset.document_ranges)
        while not last:
            _, last = self._shuffled_block(0, block)
            count, block = count + len(self._edges) - 1, block + 1
        return count

    def _empty_error(self) -> UserError:
        if not self.num_dropped:
            return corpus_too_small()
        return UserError(f"none of the {self.num_dropped:,} pairs fits a sequence_length of {self.packer.template.length}; "
                         "set corpus.sequence_length higher.")

    def _row_lengths(self, spans: RowSpans) -> np.ndarray:
        return self.packer.row_lengths(spans.part_lengths(0), spans.part_lengths(1))

    def _arrange(self, spans: RowSpans, rng: np.random.Generator) -> RowSpans:
        sizes = self._row_lengths(spans)
        seeming = (sizes * (1 + LENGTH_JITTER * rng.random(spans.num_rows))
                   + rng.random(spans.num_rows)).astype(np.int64)
        # Among rows that are equally long, those whose other side is alike stand together.
        other = spans.part_lengths(0) - spans.part_lengths(1) + rng.random(spans.num_rows)
        order = np.lexsort((other, seeming))
        edges = self._batch_edges(sizes[order])
        shuffled = rng.permutation(len(edges) - 1)
        counts = np.diff(edges)[shuffled]
        self._edges = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(spans.num_rows) - np.repeat(self._edges[:-1], counts)
        return spans.select(order[np.repeat(edges[shuffled], counts) + within])

    def _batch_edges(self, row_lengths: np.ndarray) -> np.ndarray:
        """The edges of batches of rows in this order, each as large as `places` allows."""
        edges = [0]
        while (start := edges[-1]) < len(row_lengths):
            longest = np.maximum.accumulate(row_lengths[start:start + max(1,
                self.max_batch_tokens // int(row_lengths[start]))])
            filled = longest * np.arange(1, len(longest) + 1)
            edges.append(start + max(1, int(np.searchsorted(filled, self.max_batch_tokens, side="right"))))
        return np.array(edges)

    def _documents_by_set(self, mixture_weights: Sequence[float]) -> list[tuple[np.ndarray, int]]:
        """Of each group, the numbers of its documents in this view, and how many of them an epoch takes."""
        groups = self.subset.corpus.manifest.get("groups", [])
        if len(mixture_weights) != len(groups) or min(mixture_weights, default=0) < 0 or not any(mixture_weights):
            raise UserError(f"{len(mixture_weights)} rates for {len(groups)} groups of pairs; give each group a rate of 0 or "
                            "more, and not 0 to all.")
        number = np.searchsorted(self.subset.corpus.document_starts, self.subset.document_ranges[:, 0])
        owner = np.searchsorted([group["first"] for group in groups], number, side="right") - 1
        members = [np.flatnonzero(owner == group) for group in range(len(groups))]
        shares = np.array([rate if len(found) else 0.0 for rate, found in zip(mixture_weights, members, strict=True)])
        if not shares.sum():
            raise self._empty_error()
        ends = np.rint(np.cumsum(shares) / shares.sum() * len(number)).astype(int)  # so that they add up
        return list(zip(members, np.diff(ends, prepend=0).tolist(), strict=True))

    def _order(self, copy_index: int) -> np.ndarray:
        if self._groups is None:
            return super()._order(copy_index)
        parts = [self._sample_documents(group, members, copy_index * count, (copy_index + 1) * count)
                 for group, (members, count) in enumerate(self._groups) if count]
        return np.random.default_rng([self.seed, copy_index, 1]).permutation(np.concatenate(parts))

    def _sample_documents(self, set_index: int, members: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Documents `start` to `stop` of an endless series: all of the group in a random order, then all anew."""
        size = len(members)
        rounds = range(start // size, -(-stop // size))
        series = [np.random.default_rng([self.seed, set_index, turn, 6]).permutation(members) for turn in rounds]
        return np.concatenate(series)[start - rounds[0] * size:][:stop - start]


def _pair_lengths(subset: CorpusSubset, packer: Packer) -> np.ndarray:
    """(D,) the places that each document needs as a pair; more than there are, where it is none."""
    sentences = np.asarray(subset.corpus.sentence_starts)
    first, last = np.searchsorted(sentences, subset.document_ranges).T
    middle = sentences[np.minimum(first + 1, last)]
    start, stop = subset.document_ranges.T
    sizes = packer.row_lengths(middle - start, stop - middle)
    return np.where(last - first == 2, sizes, np.iinfo(sizes.dtype).max)


def _slice_rows(spans: RowSpans, start: int, stop: int) -> RowSpans:
    """Neighbouring rows: what `select` gives, at the cost of a batch and not of a block."""
    here = slice(*np.searchsorted(spans.row, [start, stop]))
    return RowSpans(int(stop - start), spans.row[here] - start, spans.start[here], spans.length[here],
                  spans.part[here], spans.separator_before[here], spans.continues_after)
