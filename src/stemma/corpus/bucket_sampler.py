"""Batches of rows of similar length with a bounded number of tokens: few long rows or many short ones.

Rows are padded to the longest of their batch, so batches of arbitrary rows would be mostly padding (Attention Is All
You Need, arXiv:1706.03762, section 5.1, batches pairs by approximate length). Each block is sorted by length plus
noise, so that every epoch has other batches; then it is cut into batches, and these are shuffled.

Several sets of pairs can be sampled with mixture weights, such as T5's (arXiv:1910.10683, section 3.5.2).
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

LENGTH_JITTER = 0.02  # maximum noise in the sort key, as a fraction of the row's length


def mixture_weights(counts: Sequence[int], temperature: float = 1.0, max_examples: int | None = None,
                    multipliers: Sequence[float] | None = None) -> list[float]:
    """Sampling probability of each set: proportional to min(size, `max_examples`) ** (1 / `temperature`), times its
    multiplier. A higher temperature makes the probabilities more equal."""
    sizes = np.minimum(np.asarray(counts, float), np.inf if max_examples is None else max_examples)
    scaled = np.where(sizes > 0, sizes ** (1 / temperature), 0) * np.asarray(1.0 if multipliers is None
                                                                             else multipliers)
    weights: list[float] = (scaled / scaled.sum()).tolist()
    return weights


class BucketSampler(RowSampler):
    """Endless batches of at most `max_batch_tokens` tokens per side, padding included: rows x the longest row. (A
    single longer row is still a batch.) The cursor is (epoch, block, batch).

    With `mixture_weights`, one for each set of pairs of the corpus, an epoch still has as many pairs as the subset, but
    sampled by these weights. Each set is shuffled and used up before it is shuffled again, across epochs."""

    def __init__(self, subset: CorpusSubset, packer: Packer, seed: int, max_batch_tokens: int,
                 num_static_copies: int | None = None,
                 mixture_weights: Sequence[float] | None = None):
        paired = packing_settings(packer.kind).reads == "pairs"
        sizes = _pair_lengths(subset, packer) if paired else np.ones(len(subset.document_ranges), np.int64)
        fits = sizes <= packer.template.length
        super().__init__(CorpusSubset(subset.corpus, subset.document_ranges[fits]), packer, seed, num_static_copies)
        self.num_dropped = int((~fits).sum())  # pairs that are too long for the window
        # First token of the first dropped pair.
        self.first_dropped = int(subset.document_ranges[np.argmin(fits), 0]) if self.num_dropped else None
        self.max_row_length = int(sizes[fits].max(initial=0))  # length of the longest pair that fits
        self.max_batch_tokens = max_batch_tokens
        self._edges = np.zeros(1, np.int64)  # first row of each batch in the current block, and the end
        self._groups = None if mixture_weights is None else self._documents_by_set(mixture_weights)

    @classmethod
    def from_request(cls, request: SamplerRequest) -> Self:
        return cls(request.subset, request.packer, request.seed, request.rows * request.length,
                   request.num_static_copies, request.mixture_weights)

    @classmethod
    def validation_rows(cls, request: SamplerRequest, tokens: int, max_batch_tokens: int) -> Iterator[ValidationRows]:
        max_tokens = min(request.rows * request.length, max_batch_tokens)
        sampler = cls(request.subset, request.packer, request.seed, max_tokens)
        for index, batch in enumerate(sampler.first_batches(tokens)):
            yield ValidationRows(index, batch, False)

    def next_rows(self, rows: int = 0) -> tuple[RowSpans, np.ndarray]:
        """The next batch, of any number of rows, and the epoch (or static copy) of each row."""
        if not len(self.subset.document_ranges):
            raise self._empty_error()
        cursor = self.cursor
        spans, last = self._shuffled_block(cursor.epoch, cursor.block)
        batch = _slice_rows(spans, *self._edges[cursor.row:cursor.row + 2])
        if cursor.row + 2 < len(self._edges):
            self.cursor = Cursor(cursor.epoch, cursor.block, cursor.row + 1)
        else:
            self.cursor = Cursor(cursor.epoch + 1) if last else Cursor(cursor.epoch, cursor.block + 1)
        return batch, np.full(batch.num_rows, self._copy_index(cursor.epoch))

    def first_batches(self, max_tokens: int) -> list[RowSpans]:
        """The first batches of epoch 0, up to `max_tokens` with padding, at least one. For validation: batches are
        shuffled, so the first ones have representative lengths."""
        if not len(self.subset.document_ranges):
            return []
        spans, _ = self._shuffled_block(0, 0)
        sizes = np.maximum.reduceat(self._row_lengths(spans), self._edges[:-1]) * np.diff(self._edges)
        count = max(1, int(np.searchsorted(np.cumsum(sizes), max_tokens, side="right")))
        return [_slice_rows(spans, *self._edges[index:index + 2]) for index in range(min(count, len(sizes)))]

    def batches_in_epoch(self) -> int:
        """Number of batches in epoch 0; other epochs differ slightly."""
        count, block, last = 0, 0, not len(self.subset.document_ranges)
        while not last:
            _, last = self._shuffled_block(0, block)
            count, block = count + len(self._edges) - 1, block + 1
        return count

    def _empty_error(self) -> UserError:
        if not self.num_dropped:
            return corpus_too_small()
        return UserError(f"none of the {self.num_dropped:,} pairs fits a sequence_length of "
                         f"{self.packer.template.length}; set corpus.sequence_length higher.")

    def _row_lengths(self, spans: RowSpans) -> np.ndarray:
        return self.packer.row_lengths(spans.part_lengths(0), spans.part_lengths(1))

    def _arrange(self, spans: RowSpans, rng: np.random.Generator) -> RowSpans:
        sizes = self._row_lengths(spans)
        noisy_length = (sizes * (1 + LENGTH_JITTER * rng.random(spans.num_rows))
                        + rng.random(spans.num_rows)).astype(np.int64)
        # Rows of equal length are sorted by the length difference of their sides, to save padding on both.
        difference = spans.part_lengths(0) - spans.part_lengths(1) + rng.random(spans.num_rows)
        order = np.lexsort((difference, noisy_length))
        edges = self._batch_edges(sizes[order])
        shuffled = rng.permutation(len(edges) - 1)
        counts = np.diff(edges)[shuffled]
        self._edges = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(spans.num_rows) - np.repeat(self._edges[:-1], counts)
        return spans.select(order[np.repeat(edges[shuffled], counts) + within])

    def _batch_edges(self, row_lengths: np.ndarray) -> np.ndarray:
        """First row of each batch, and the end; each batch is as large as `max_batch_tokens` allows."""
        edges = [0]
        while (start := edges[-1]) < len(row_lengths):
            max_rows = max(1, self.max_batch_tokens // int(row_lengths[start]))
            longest = np.maximum.accumulate(row_lengths[start:start + max_rows])
            padded_tokens = longest * np.arange(1, len(longest) + 1)
            edges.append(start + max(1, int(np.searchsorted(padded_tokens, self.max_batch_tokens, side="right"))))
        return np.array(edges)

    def _documents_by_set(self, mixture_weights: Sequence[float]) -> list[tuple[np.ndarray, int]]:
        """For each set of pairs, the indices of its documents in this subset, and the number of them per epoch."""
        groups = self.subset.corpus.manifest.get("groups", [])
        if len(mixture_weights) != len(groups) or min(mixture_weights, default=0) < 0 or not any(mixture_weights):
            raise UserError(f"{len(mixture_weights)} rates for {len(groups)} groups of pairs; give each group a rate "
                            "of 0 or more, and not 0 to all.")
        document = np.searchsorted(self.subset.corpus.document_starts, self.subset.document_ranges[:, 0])
        set_index = np.searchsorted([group["first"] for group in groups], document, side="right") - 1
        members = [np.flatnonzero(set_index == group) for group in range(len(groups))]
        weights = np.array([weight if len(documents) else 0.0
                            for weight, documents in zip(mixture_weights, members, strict=True)])
        if not weights.sum():
            raise self._empty_error()
        ends = np.rint(np.cumsum(weights) / weights.sum() * len(document)).astype(int)  # rounded sums add up exactly
        return list(zip(members, np.diff(ends, prepend=0).tolist(), strict=True))

    def _order(self, copy_index: int) -> np.ndarray:
        if self._groups is None:
            return super()._order(copy_index)
        parts = [self._sample_documents(group, members, copy_index * count, (copy_index + 1) * count)
                 for group, (members, count) in enumerate(self._groups) if count]
        return np.random.default_rng([self.seed, copy_index, 1]).permutation(np.concatenate(parts))

    def _sample_documents(self, set_index: int, members: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Documents `start` to `stop` of an endless series: the whole set in random order, then reshuffled."""
        size = len(members)
        rounds = range(start // size, -(-stop // size))
        series = [np.random.default_rng([self.seed, set_index, index, 6]).permutation(members) for index in rounds]
        return np.concatenate(series)[start - rounds[0] * size:][:stop - start]


def _pair_lengths(subset: CorpusSubset, packer: Packer) -> np.ndarray:
    """(D,) row length of each document as a pair; the largest integer if it is not a pair."""
    sentences = np.asarray(subset.corpus.sentence_starts)
    first, last = np.searchsorted(sentences, subset.document_ranges).T
    middle = sentences[np.minimum(first + 1, last)]
    start, stop = subset.document_ranges.T
    sizes = packer.row_lengths(middle - start, stop - middle)
    return np.where(last - first == 2, sizes, np.iinfo(sizes.dtype).max)


def _slice_rows(spans: RowSpans, start: int, stop: int) -> RowSpans:
    """Consecutive rows: equal to `select`, but costs a batch instead of a block."""
    inside = slice(*np.searchsorted(spans.row, [start, stop]))
    return RowSpans(int(stop - start), spans.row[inside] - start, spans.start[inside], spans.length[inside],
                    spans.part[inside], spans.separator_before[inside], spans.continues_after)
