"""Packings: functions that cut documents into rows.

The four input formats that RoBERTa compares (arXiv:1907.11692, section 4.2) are segment_pair, sentence_pair,
full_sentences and doc_sentences; stream ignores sentences. A Python iteration makes a row, never a single token.
sentence and parallel are for batches of similar length: a row is a sentence, or a pair of source and target.
dialogue makes rows of two or three turns, as ERNIE 1.0 does (arXiv:1904.09223, section 3.3).

A packing is registered with its properties (`PackingSettings`). It is a function of documents (arrays of sentence
bounds), the `Packer` and a random generator. A packing whose rows continue from batch to batch is registered as a
sampler class instead: see `contiguous_sampler.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stemma import registry
from stemma.corpus.row_spans import RowSpans
from stemma.corpus.row_template import RowTemplate
from stemma.errors import UserError
from stemma.registry import register
from stemma.schema.corpus import PackingSettings, packing_settings

MAX_TURNS = 3
SpanTuple = tuple[int, int, int, int, bool]


@dataclass(frozen=True)
class Packer:
    """Cuts documents into rows: a packing with its template and options."""

    kind: str
    template: RowTemplate
    short_probability: float = 0.0
    joint_window: bool = False  # source and target of parallel text share one row, for networks without a decoder

    @property
    def is_pair(self) -> bool:
        settings = packing_settings(self.kind)
        return self.joint_window or settings.paired and settings.reads == "text"

    @property
    def capacity(self) -> int:
        """Number of text tokens that fit a row: of A and B together, or of each if A and B are separate rows."""
        return self.template.capacity(self.is_pair)

    def row_lengths(self, lengths_a: np.ndarray, lengths_b: np.ndarray) -> np.ndarray:
        """Row lengths including special tokens, from the lengths of A and B; if they are separate rows, the longer
        one counts."""
        text = lengths_a + lengths_b if self.joint_window else np.maximum(lengths_a, lengths_b)
        lengths: np.ndarray = text + self.template.length - self.capacity
        return lengths

    def pack(self, documents: list[np.ndarray], rng: np.random.Generator) -> RowSpans:
        """`documents` are arrays of sentence bounds: (S+1,) token offsets each."""
        spans: RowSpans = registry.get("packing", self.kind).build(documents, self, rng)
        return spans


class SegmentPairPacking(PackingSettings):
    paired = True
    filled = True
    shortens = True


@register("packing", "segment_pair", SegmentPairPacking)
def segment_pair(documents: list[np.ndarray], packer: Packer, rng: np.random.Generator) -> RowSpans:
    """A and B are consecutive runs of whole sentences that together fill the window (arXiv:1810.04805, A.2). With
    `short_probability` a row is shorter, to match short inputs at fine-tuning."""
    spans: list[SpanTuple] = []
    row = 0
    for bounds in documents:
        first, last = 0, len(bounds) - 1
        while first < last:
            target = packer.capacity
            if packer.short_probability and rng.random() < packer.short_probability:
                target = int(rng.integers(2, packer.capacity + 1))
            stop = int(np.searchsorted(bounds, bounds[first] + target))  # the first bound that reaches the target
            stop = min(max(stop, first + 1), last)
            middle = first + 1 if stop - first < 3 else int(rng.integers(first + 1, stop))
            spans.append((row, bounds[first], bounds[middle] - bounds[first], 0, False))
            if middle < stop:
                spans.append((row, bounds[middle], bounds[stop] - bounds[middle], 1, False))
            row += 1
            first = stop
    row_spans = RowSpans.from_tuples(row, spans)
    row_spans.truncate_pairs(packer.capacity, rng)
    return row_spans


class SentencePairPacking(PackingSettings):
    paired = True
    filled = True


@register("packing", "sentence_pair", SentencePairPacking)
def sentence_pair(documents: list[np.ndarray], packer: Packer, rng: np.random.Generator) -> RowSpans:
    """Two consecutive sentences."""
    spans: list[SpanTuple] = []
    row = 0
    for bounds in documents:
        for first in range(0, len(bounds) - 1, 2):
            spans.append((row, bounds[first], bounds[first + 1] - bounds[first], 0, False))
            if first + 2 < len(bounds):
                spans.append((row, bounds[first + 1], bounds[first + 2] - bounds[first + 1], 1, False))
            row += 1
    row_spans = RowSpans.from_tuples(row, spans)
    row_spans.truncate_pairs(packer.capacity, rng)
    return row_spans


class FullSentencesPacking(PackingSettings):
    filled = True


@register("packing", "full_sentences", FullSentencesPacking)
def full_sentences(documents: list[np.ndarray], packer: Packer, rng: np.random.Generator) -> RowSpans:
    """Whole sentences until the window is full, across documents, with a separator between them."""
    spans: list[SpanTuple] = []
    row, used = 0, 0
    for bounds in documents:
        start, end, separator = int(bounds[0]), int(bounds[-1]), used > 0 and packer.template.has_separator
        while start < end:
            stop = _last_sentence_bound(bounds, start, packer.capacity - used - separator)
            if stop is None and used:  # no further sentence fits
                row, used, separator = row + 1, 0, False
                continue
            stop = stop or start + packer.capacity  # a sentence longer than the window is cut
            spans.append((row, start, stop - start, 0, separator))
            used += stop - start + separator
            start, separator = stop, False
    return RowSpans.from_tuples(row + 1 if spans else 0, spans)


def _last_sentence_bound(bounds: np.ndarray, start: int, space: int) -> int | None:
    """The last sentence bound within `space` tokens after `start`; None if there is none."""
    stop = int(bounds[np.searchsorted(bounds, start + max(space, 0), side="right") - 1])
    return stop if stop > start else None


class DocSentencesPacking(PackingSettings):
    filled = True
    one_document = True


@register("packing", "doc_sentences", DocSentencesPacking)
def doc_sentences(documents: list[np.ndarray], packer: Packer, rng: np.random.Generator) -> RowSpans:
    """Whole sentences until the window is full, never across documents."""
    spans: list[SpanTuple] = []
    for bounds in documents:
        start = int(bounds[0])
        while start < bounds[-1]:
            stop = _last_sentence_bound(bounds, start, packer.capacity) or start + packer.capacity
            spans.append((len(spans), start, stop - start, 0, False))
            start = stop
    return RowSpans.from_tuples(len(spans), spans)


class StreamPacking(PackingSettings):
    filled = True


@register("packing", "stream", StreamPacking)
def stream(documents: list[np.ndarray], packer: Packer, rng: np.random.Generator) -> RowSpans:
    """Concatenated documents with separators, cut wherever the window ends."""
    spans: list[SpanTuple] = []
    row, used = 0, 0
    for bounds in documents:
        start, end, separator = int(bounds[0]), int(bounds[-1]), used > 0 and packer.template.has_separator
        while start < end:
            if used + separator >= packer.capacity:
                row, used, separator = row + 1, 0, False
            length = min(packer.capacity - used - separator, end - start)
            spans.append((row, start, length, 0, separator))
            used += length + separator
            start, separator = start + length, False
    return RowSpans.from_tuples(row + 1 if spans else 0, spans, continues_after=True)


class SentencePacking(PackingSettings):
    bucketed = True


@register("packing", "sentence", SentencePacking)
def sentence(documents: list[np.ndarray], packer: Packer, rng: np.random.Generator) -> RowSpans:
    """One sentence per row; a sentence longer than the window is cut."""
    start, length = _sentences(documents)
    cuts = -(-length // packer.capacity)  # number of rows of each sentence
    index = np.arange(cuts.sum()) - np.repeat(np.cumsum(cuts) - cuts, cuts)
    start = np.repeat(start, cuts) + index * packer.capacity
    length = np.minimum(np.repeat(length, cuts) - index * packer.capacity, packer.capacity)
    return _one_span_per_part(np.arange(len(start)), np.zeros(len(start)), start, length)


class ParallelPacking(PackingSettings):
    reads = "pairs"
    paired = True
    bucketed = True


@register("packing", "parallel", ParallelPacking)
def parallel(documents: list[np.ndarray], packer: Packer, rng: np.random.Generator) -> RowSpans:
    """Source and target. A pair with a side longer than its window is dropped: a truncated translation teaches the
    model to stop too early."""
    start, length = _sentences([bounds for bounds in documents if len(bounds) == 3])
    fits = np.repeat(packer.row_lengths(length[::2], length[1::2]) <= packer.template.length, 2)
    start, length = start[fits], length[fits]
    return _one_span_per_part(np.arange(len(start)) // 2, np.arange(len(start)) % 2, start, length)


class DialoguePacking(PackingSettings):
    reads = "dialogues"


@register("packing", "dialogue", DialoguePacking)
def dialogue(documents: list[np.ndarray], packer: Packer, rng: np.random.Generator) -> RowSpans:
    """Two or three consecutive turns with separators; a single turn only if its dialogue has no other."""
    spans: list[SpanTuple] = []
    row = 0
    for bounds in documents:
        first, last = 0, len(bounds) - 1
        while first < last:
            num_left = last - first
            turns = num_left if num_left <= MAX_TURNS else 2 if num_left == 4 else int(rng.integers(2, MAX_TURNS + 1))
            spans += [(row, bounds[turn], bounds[turn + 1] - bounds[turn], 0, turn > first)
                      for turn in range(first, first + turns)]
            row, first = row + 1, first + turns
    row_spans = RowSpans.from_tuples(row, spans)
    fit_turns(row_spans, packer.template)
    return row_spans


def fit_turns(spans: RowSpans, template: RowTemplate) -> None:
    """Truncate a row's longest turns to one common length so that the row fits."""
    turn = np.arange(len(spans.row)) - np.searchsorted(spans.row, spans.row)
    lengths = np.zeros((spans.num_rows, MAX_TURNS), np.int64)
    lengths[spans.row, turn] = spans.length
    num_separators = np.bincount(spans.row[spans.separator_before & template.has_separator], minlength=spans.num_rows)
    max_tokens = template.capacity(pair=False) - num_separators
    if (max_tokens < MAX_TURNS).any():
        raise UserError(f"a sequence_length of {template.length} leaves no room for {MAX_TURNS} turns of a dialogue; "
                        "set corpus.sequence_length higher.")
    # If the k shortest turns stay whole, the others can have (max_tokens - their sum) / (n - k) tokens each; the
    # maximum over k is the common length.
    cumulative = np.cumsum(np.sort(lengths, axis=1), axis=1)
    shorter_sum = np.concatenate([np.zeros((spans.num_rows, 1), np.int64), cumulative[:, :-1]], axis=1)
    longest = ((max_tokens[:, None] - shorter_sum) // np.arange(MAX_TURNS, 0, -1)).max(axis=1)
    fits = cumulative[:, -1] <= max_tokens
    spans.length = np.where(fits[spans.row], spans.length, np.minimum(spans.length, longest[spans.row]))


def _sentences(documents: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Start and length of every sentence of the documents, in order."""
    if not documents:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    bounds = np.concatenate(documents)
    inside = np.ones(len(bounds), bool)
    inside[np.cumsum([len(document) for document in documents]) - 1] = False  # a document's end is no sentence start
    first = np.flatnonzero(inside)
    return bounds[first], bounds[first + 1] - bounds[first]


def _one_span_per_part(row: np.ndarray, part: np.ndarray, start: np.ndarray, length: np.ndarray) -> RowSpans:
    """Rows with one span per part."""
    rows = int(row[-1]) + 1 if len(row) else 0
    return RowSpans(rows, row, start, length, part.astype(np.int8), np.zeros(len(row), bool))
