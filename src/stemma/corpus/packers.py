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
from stemma.corpus.layout import Layout
from stemma.corpus.pieces import Pieces
from stemma.errors import UserError
from stemma.registry import register
from stemma.schema.corpus import PackingSettings, packing_of

MOST_TURNS = 3
PieceRow = tuple[int, int, int, int, bool]


@dataclass(frozen=True)
class Packing:
    kind: str
    layout: Layout
    short_probability: float = 0.0
    together: bool = False  # of parallel text: source and target share one window, where a network has no decoder

    @property
    def paired(self) -> bool:
        facts = packing_of(self.kind)
        return self.together or facts.paired and facts.reads == "text"

    @property
    def capacity(self) -> int:
        """Tokens of text that fit a window: of A and B together, or where each has its own (by the template `single`),
        of either."""
        return self.layout.capacity(self.paired)

    def sizes(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """The places that each row needs, special tokens included, by the tokens in A and in B; where each has a
        window of its own, those of the longer."""
        text = first + second if self.together else np.maximum(first, second)
        needed: np.ndarray = text + self.layout.length - self.capacity
        return needed

    def pack(self, documents: list[np.ndarray], rng: np.random.Generator) -> Pieces:
        """`documents` are arrays of sentence bounds: (S+1,) token offsets each."""
        made: Pieces = registry.get("packing", self.kind).build(documents, self, rng)
        return made


class SegmentPair(PackingSettings):
    paired = True
    filled = True
    shortens = True


@register("packing", "segment_pair", SegmentPair)
def segment_pair(documents: list[np.ndarray], packing: Packing, rng: np.random.Generator) -> Pieces:
    """A and B are neighbouring stretches of whole sentences that together fill the window (arXiv:1810.04805, A.2);
    now and then a shorter row, so that short inputs are no surprise later."""
    made: list[PieceRow] = []
    row = 0
    for bounds in documents:
        first, last = 0, len(bounds) - 1
        while first < last:
            target = packing.capacity
            if packing.short_probability and rng.random() < packing.short_probability:
                target = int(rng.integers(2, packing.capacity + 1))
            stop = int(np.searchsorted(bounds, bounds[first] + target))  # the first bound that reaches the target
            stop = min(max(stop, first + 1), last)
            middle = first + 1 if stop - first < 3 else int(rng.integers(first + 1, stop))
            made.append((row, bounds[first], bounds[middle] - bounds[first], 0, False))
            if middle < stop:
                made.append((row, bounds[middle], bounds[stop] - bounds[middle], 1, False))
            row += 1
            first = stop
    pieces = Pieces.of(row, made)
    pieces.truncate_pairs(packing.capacity, rng)
    return pieces


class SentencePair(PackingSettings):
    paired = True
    filled = True


@register("packing", "sentence_pair", SentencePair)
def sentence_pair(documents: list[np.ndarray], packing: Packing, rng: np.random.Generator) -> Pieces:
    """Two neighbouring sentences, and no more."""
    made: list[PieceRow] = []
    row = 0
    for bounds in documents:
        for first in range(0, len(bounds) - 1, 2):
            made.append((row, bounds[first], bounds[first + 1] - bounds[first], 0, False))
            if first + 2 < len(bounds):
                made.append((row, bounds[first + 1], bounds[first + 2] - bounds[first + 1], 1, False))
            row += 1
    pieces = Pieces.of(row, made)
    pieces.truncate_pairs(packing.capacity, rng)
    return pieces


class FullSentences(PackingSettings):
    filled = True


@register("packing", "full_sentences", FullSentences)
def full_sentences(documents: list[np.ndarray], packing: Packing, rng: np.random.Generator) -> Pieces:
    """Whole sentences until the window is full, across documents, with a separator between them."""
    made: list[PieceRow] = []
    row, used = 0, 0
    for bounds in documents:
        start, end, gap = int(bounds[0]), int(bounds[-1]), used > 0 and packing.layout.separated
        while start < end:
            stop = _whole_sentences(bounds, start, packing.capacity - used - gap)
            if stop is None and used:  # not even one fits behind what is there
                row, used, gap = row + 1, 0, False
                continue
            stop = stop or start + packing.capacity  # a sentence longer than the window is cut
            made.append((row, start, stop - start, 0, gap))
            used += stop - start + gap
            start, gap = stop, False
    return Pieces.of(row + 1 if made else 0, made)


def _whole_sentences(bounds: np.ndarray, start: int, space: int) -> int | None:
    """The last sentence bound within `space` tokens of `start`, if there is one."""
    stop = int(bounds[np.searchsorted(bounds, start + max(space, 0), side="right") - 1])
    return stop if stop > start else None


class DocSentences(PackingSettings):
    filled = True
    one_document = True


@register("packing", "doc_sentences", DocSentences)
def doc_sentences(documents: list[np.ndarray], packing: Packing, rng: np.random.Generator) -> Pieces:
    """Whole sentences until the window is full, never across documents."""
    made: list[PieceRow] = []
    for bounds in documents:
        start = int(bounds[0])
        while start < bounds[-1]:
            stop = _whole_sentences(bounds, start, packing.capacity) or start + packing.capacity
            made.append((len(made), start, stop - start, 0, False))
            start = stop
    return Pieces.of(len(made), made)


class Stream(PackingSettings):
    filled = True


@register("packing", "stream", Stream)
def stream(documents: list[np.ndarray], packing: Packing, rng: np.random.Generator) -> Pieces:
    """The running text, cut wherever the window ends, with a separator where a new document begins."""
    made: list[PieceRow] = []
    row, used = 0, 0
    for bounds in documents:
        start, end, gap = int(bounds[0]), int(bounds[-1]), used > 0 and packing.layout.separated
        while start < end:
            if used + gap >= packing.capacity:
                row, used, gap = row + 1, 0, False
            length = min(packing.capacity - used - gap, end - start)
            made.append((row, start, length, 0, gap))
            used += length + gap
            start, gap = start + length, False
    return Pieces.of(row + 1 if made else 0, made, running=True)


class Sentence(PackingSettings):
    bucketed = True


@register("packing", "sentence", Sentence)
def sentence(documents: list[np.ndarray], packing: Packing, rng: np.random.Generator) -> Pieces:
    """Every sentence by itself; one longer than the window is cut."""
    start, length = _sentences(documents)
    cuts = -(-length // packing.capacity)  # rows that each sentence makes
    number = np.arange(cuts.sum()) - np.repeat(np.cumsum(cuts) - cuts, cuts)
    start = np.repeat(start, cuts) + number * packing.capacity
    length = np.minimum(np.repeat(length, cuts) - number * packing.capacity, packing.capacity)
    return _one_piece_each(np.arange(len(start)), np.zeros(len(start)), start, length)


class Parallel(PackingSettings):
    reads = "pairs"
    paired = True
    bucketed = True


@register("packing", "parallel", Parallel)
def parallel(documents: list[np.ndarray], packing: Packing, rng: np.random.Generator) -> Pieces:
    """Source and target; a pair of which a side is longer than its window is left out, since a translation that was
    cut teaches to stop too early."""
    start, length = _sentences([bounds for bounds in documents if len(bounds) == 3])
    fits = np.repeat(packing.sizes(length[::2], length[1::2]) <= packing.layout.length, 2)
    start, length = start[fits], length[fits]
    return _one_piece_each(np.arange(len(start)) // 2, np.arange(len(start)) % 2, start, length)


class Dialogue(PackingSettings):
    reads = "dialogues"


@register("packing", "dialogue", Dialogue)
def dialogue(documents: list[np.ndarray], packing: Packing, rng: np.random.Generator) -> Pieces:
    """Two or three neighbouring turns with a separator between them; a turn is alone only if its dialogue has no other.
    """
    made: list[PieceRow] = []
    row = 0
    for bounds in documents:
        first, last = 0, len(bounds) - 1
        while first < last:
            left = last - first
            turns = left if left <= MOST_TURNS else 2 if left == 4 else int(rng.integers(2, MOST_TURNS + 1))
            made += [(row, bounds[turn], bounds[turn + 1] - bounds[turn], 0, turn > first)
                     for turn in range(first, first + turns)]
            row, first = row + 1, first + turns
    pieces = Pieces.of(row, made)
    fit_turns(pieces, packing.layout)
    return pieces


def fit_turns(pieces: Pieces, layout: Layout) -> None:
    """Cut the ends of a row's longest turns, to one length, until the row fits its window."""
    place = np.arange(len(pieces.row)) - np.searchsorted(pieces.row, pieces.row)
    lengths = np.zeros((pieces.rows, MOST_TURNS), np.int64)
    lengths[pieces.row, place] = pieces.length
    room = layout.capacity(pair=False) - np.bincount(pieces.row[pieces.gap & layout.separated], minlength=pieces.rows)
    if (room < MOST_TURNS).any():
        raise UserError(f"a sequence_length of {layout.length} leaves no room for {MOST_TURNS} turns of a dialogue; "
                        "set corpus.sequence_length higher.")
    # If the k shortest stay whole, the others can have (room - theirs) / (n - k) each; the most that some k allows is
    # the length that all fit with.
    whole = np.cumsum(np.sort(lengths, axis=1), axis=1)
    before = np.concatenate([np.zeros((pieces.rows, 1), np.int64), whole[:, :-1]], axis=1)
    longest = ((room[:, None] - before) // np.arange(MOST_TURNS, 0, -1)).max(axis=1)
    fits = whole[:, -1] <= room
    pieces.length = np.where(fits[pieces.row], pieces.length, np.minimum(pieces.length, longest[pieces.row]))


def _sentences(documents: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Start and length of every sentence of these documents, in order."""
    if not documents:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    bounds = np.concatenate(documents)
    inside = np.ones(len(bounds), bool)
    inside[np.cumsum([len(document) for document in documents]) - 1] = False  # a document's end begins no sentence
    first = np.flatnonzero(inside)
    return bounds[first], bounds[first + 1] - bounds[first]


def _one_piece_each(row: np.ndarray, part: np.ndarray, start: np.ndarray, length: np.ndarray) -> Pieces:
    """Rows of which each part is one piece."""
    rows = int(row[-1]) + 1 if len(row) else 0
    return Pieces(rows, row, start, length, part.astype(np.int8), np.zeros(len(row), bool))
