"""Packers: how documents are cut into rows. Each takes some documents and gives back Pieces.

The four input formats that RoBERTa compares (arXiv:1907.11692, section 4.2) are all here: segment_pair, sentence_pair,
full_sentences, doc_sentences; and stream, which ignores sentences. One Python step makes one row, never one token.
For batches of similar length there are sentence and parallel: a sentence, or a pair of source and target, is a row.
dialogue makes a row of two or three turns, as ERNIE 1.0 does (arXiv:1904.09223, section 3.3).
Packings whose rows go on from batch to batch are cut by their feed: see `contiguous.py`.

A packing is registered with what other modules must know of it, and is a function of documents (arrays of sentence
bounds), the `Packing` and random numbers; one whose rows go on is the class of its feed.
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
    kind: str
    template: RowTemplate
    short_probability: float = 0.0
    joint_window: bool = False  # of parallel text: source and target share one window, where a network has no decoder

    @property
    def is_pair(self) -> bool:
        facts = packing_settings(self.kind)
        return self.joint_window or facts.paired and facts.reads == "text"

    @property
    def capacity(self) -> int:
        """Tokens of text that fit a window: of A and B together, or where each has its own (by the template `single`),
        of either."""
        return self.template.capacity(self.is_pair)

    def row_lengths(self, lengths_a: np.ndarray, lengths_b: np.ndarray) -> np.ndarray:
        """The places that each row needs, special tokens included, by the tokens in A and in B; where each has a
        window of its own, those of the longer."""
        text = lengths_a + lengths_b if self.joint_window else np.maximum(lengths_a, lengths_b)
        needed: np.ndarray = text + self.template.length - self.capacity
        return needed

    def pack(self, documents: list[np.ndarray], rng: np.random.Generator) -> RowSpans:
        """`documents` are arrays of sentence bounds: (S+1,) token offsets each."""
        made: RowSpans = registry.get("packing", self.kind).build(documents, self, rng)
        return made


class SegmentPairPacking(PackingSettings):
    paired = True
    filled = True
    shortens = True


@register("packing", "segment_pair", SegmentPairPacking)
def segment_pair(documents: list[np.ndarray], packer: Packer, rng: np.random.Generator) -> RowSpans:
    """A and B are neighbouring stretches of whole sentences that together fill the window (arXiv:1810.04805, A.2);
    now and then a shorter row, so that short inputs are no surprise later."""
    made: list[SpanTuple] = []
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
            made.append((row, bounds[first], bounds[middle] - bounds[first], 0, False))
            if middle < stop:
                made.append((row, bounds[middle], bounds[stop] - bounds[middle], 1, False))
            row += 1
            first = stop
    pieces = RowSpans.from_tuples(row, made)
    pieces.truncate_pairs(packer.capacity, rng)
    return pieces


class SentencePairPacking(PackingSettings):
    paired = True
    filled = True


@register("packing", "sentence_pair", SentencePairPacking)
def sentence_pair(documents: list[np.ndarray], packer: Packer, rng: np.random.Generator) -> RowSpans:
    """Two neighbouring sentences, and no more."""
    made: list[SpanTuple] = []
    row = 0
    for bounds in documents:
        for first in range(0, len(bounds) - 1, 2):
            made.append((row, bounds[first], bounds[first + 1] - bounds[first], 0, False))
            if first + 2 < len(bounds):
                made.append((row, bounds[first + 1], bounds[first + 2] - bounds[first + 1], 1, False))
            row += 1
    pieces = RowSpans.from_tuples(row, made)
    pieces.truncate_pairs(packer.capacity, rng)
    return pieces


class FullSentencesPacking(PackingSettings):
    filled = True


@register("packing", "full_sentences", FullSentencesPacking)
def full_sentences(documents: list[np.ndarray], packer: Packer, rng: np.random.Generator) -> RowSpans:
    """Whole sentences until the window is full, across documents, with a separator between them."""
    made: list[SpanTuple] = []
    row, used = 0, 0
    for bounds in documents:
        start, end, gap = int(bounds[0]), int(bounds[-1]), used > 0 and packer.template.has_separator
        while start < end:
            stop = _last_sentence_bound(bounds, start, packer.capacity - used - gap)
            if stop is None and used:  # not even one fits behind what is there
                row, used, gap = row + 1, 0, False
                continue
            stop = stop or start + packer.capacity  # a sentence longer than the window is cut
            made.append((row, start, stop - start, 0, gap))
            used += stop - start + gap
            start, gap = stop, False
    return RowSpans.from_tuples(row + 1 if made else 0, made)


def _last_sentence_bound(bounds: np.ndarray, start: int, space: int) -> int | None:
    """The last sentence bound within `space` tokens of `start`, if there is one."""
    stop = int(bounds[np.searchsorted(bounds, start + max(space, 0), side="right") - 1])
    return stop if stop > start else None


class DocSentencesPacking(PackingSettings):
    filled = True
    one_document = True


@register("packing", "doc_sentences", DocSentencesPacking)
def doc_sentences(documents: list[np.ndarray], packer: Packer, rng: np.random.Generator) -> RowSpans:
    """Whole sentences until the window is full, never across documents."""
    made: list[SpanTuple] = []
    for bounds in documents:
        start = int(bounds[0])
        while start < bounds[-1]:
            stop = _last_sentence_bound(bounds, start, packer.capacity) or start + packer.capacity
            made.append((len(made), start, stop - start, 0, False))
            start = stop
    return RowSpans.from_tuples(len(made), made)


class StreamPacking(PackingSettings):
    filled = True


@register("packing", "stream", StreamPacking)
def stream(documents: list[np.ndarray], packer: Packer, rng: np.random.Generator) -> RowSpans:
    """The running text, cut wherever the window ends, with a separator where a new document begins."""
    made: list[SpanTuple] = []
    row, used = 0, 0
    for bounds in documents:
        start, end, gap = int(bounds[0]), int(bounds[-1]), used > 0 and packer.template.has_separator
        while start < end:
            if used + gap >= packer.capacity:
                row, used, gap = row + 1, 0, False
            length = min(packer.capacity - used - gap, end - start)
            made.append((row, start, length, 0, gap))
            used += length + gap
            start, gap = start + length, False
    return RowSpans.from_tuples(row + 1 if made else 0, made, continues_after=True)


class SentencePacking(PackingSettings):
    bucketed = True


@register("packing", "sentence", SentencePacking)
def sentence(documents: list[np.ndarray], packer: Packer, rng: np.random.Generator) -> RowSpans:
    """Every sentence by itself; one longer than the window is cut."""
    start, length = _sentences(documents)
    cuts = -(-length // packer.capacity)  # rows that each sentence makes
    number = np.arange(cuts.sum()) - np.repeat(np.cumsum(cuts) - cuts, cuts)
    start = np.repeat(start, cuts) + number * packer.capacity
    length = np.minimum(np.repeat(length, cuts) - number * packer.capacity, packer.capacity)
    return _one_span_per_part(np.arange(len(start)), np.zeros(len(start)), start, length)


class ParallelPacking(PackingSettings):
    reads = "pairs"
    paired = True
    bucketed = True


@register("packing", "parallel", ParallelPacking)
def parallel(documents: list[np.ndarray], packer: Packer, rng: np.random.Generator) -> RowSpans:
    """Source and target; a pair of which a side is longer than its window is left out, since a translation that was
    cut teaches to stop too early."""
    start, length = _sentences([bounds for bounds in documents if len(bounds) == 3])
    fits = np.repeat(packer.row_lengths(length[::2], length[1::2]) <= packer.template.length, 2)
    start, length = start[fits], length[fits]
    return _one_span_per_part(np.arange(len(start)) // 2, np.arange(len(start)) % 2, start, length)


class DialoguePacking(PackingSettings):
    reads = "dialogues"


@register("packing", "dialogue", DialoguePacking)
def dialogue(documents: list[np.ndarray], packer: Packer, rng: np.random.Generator) -> RowSpans:
    """Two or three neighbouring turns with a separator between them; a turn is alone only if its dialogue has no other.
    """
    made: list[SpanTuple] = []
    row = 0
    for bounds in documents:
        first, last = 0, len(bounds) - 1
        while first < last:
            left = last - first
            turns = left if left <= MAX_TURNS else 2 if left == 4 else int(rng.integers(2, MAX_TURNS + 1))
            made += [(row, bounds[turn], bounds[turn + 1] - bounds[turn], 0, turn > first)
                     for turn in range(first, first + turns)]
            row, first = row + 1, first + turns
    pieces = RowSpans.from_tuples(row, made)
    fit_turns(pieces, packer.template)
    return pieces


def fit_turns(spans: RowSpans, template: RowTemplate) -> None:
    """Cut the ends of a row's longest turns, to one length, until the row fits its window."""
    place = np.arange(len(spans.row)) - np.searchsorted(spans.row, spans.row)
    lengths = np.zeros((spans.num_rows, MAX_TURNS), np.int64)
    lengths[spans.row, place] = spans.length
    room = template.capacity(pair=False) - np.bincount(spans.row[spans.separator_before & template.has_separator],
                                                       minlength=spans.num_rows)
    if (room < MAX_TURNS).any():
        raise UserError(f"a sequence_length of {template.length} leaves no room for {MAX_TURNS} turns of a dialogue; "
                        "set corpus.sequence_length higher.")
    # If the k shortest stay whole, the others can have (room - theirs) / (n - k) each; the most that some k allows is
    # the length that all fit with.
    whole = np.cumsum(np.sort(lengths, axis=1), axis=1)
    before = np.concatenate([np.zeros((spans.num_rows, 1), np.int64), whole[:, :-1]], axis=1)
    longest = ((room[:, None] - before) // np.arange(MAX_TURNS, 0, -1)).max(axis=1)
    fits = whole[:, -1] <= room
    spans.length = np.where(fits[spans.row], spans.length, np.minimum(spans.length, longest[spans.row]))


def _sentences(documents: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Start and length of every sentence of these documents, in order."""
    if not documents:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    bounds = np.concatenate(documents)
    inside = np.ones(len(bounds), bool)
    inside[np.cumsum([len(document) for document in documents]) - 1] = False  # a document's end begins no sentence
    first = np.flatnonzero(inside)
    return bounds[first], bounds[first + 1] - bounds[first]


def _one_span_per_part(row: np.ndarray, part: np.ndarray, start: np.ndarray, length: np.ndarray) -> RowSpans:
    """Rows of which each part is one piece."""
    rows = int(row[-1]) + 1 if len(row) else 0
    return RowSpans(rows, row, start, length, part.astype(np.int8), np.zeros(len(row), bool))
