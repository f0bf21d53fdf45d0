"""A batch being prepared: laid out from pieces, then edited by each objective of its group in recipe order.

Objectives that rearrange text edit `pieces`; the first look at `ids` lays the rows out by the recipe's template, and
from then on only tokens change. Everything is a (rows, length) array, so no objective ever loops over tokens.
A row that is read backwards stands in the order of reading: its text's end comes first.
For an encoder-decoder the draft is what the source is made from, and an objective hands in the two `sides`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stemma.corpus.row_spans import RowSpans
from stemma.corpus.row_template import PART_NUMBERS, SEPARATOR, PackedRows, RowTemplate, pack_rows, reverse_rows
from stemma.corpus.seq2seq_rows import PaddedRows, field_at
from stemma.corpus.subset import CorpusSubset
from stemma.corpus.text_batches import ROLES


@dataclass(frozen=True)
class TokenTargets:
    """Places that carry a target: flat indices into (rows x length), and what should be guessed there."""

    index: np.ndarray
    labels: np.ndarray
    query_stream: bool = False  # guessed through the second stream, which does not see the token itself
    are_token_ids: bool = True  # the labels are tokens; otherwise classes


class Draft:
    def __init__(self, subset: CorpusSubset, spans: RowSpans, template: RowTemplate,
                 reversed_rows: np.ndarray | None = None,
                 continues_previous: bool = False):
        self.subset = subset
        self.corpus = subset.corpus
        self.spans = spans
        self.template = template
        self.reversed_rows = reversed_rows  # (rows,) True where a row is read from its text's end; None: nowhere
        self.continues_previous = continues_previous  # every row goes on where the same row of the batch before ended
        self.factorization_order: np.ndarray | None = None  # (rows, length) who comes when, where an objective permutes
        self.prefix_lengths: np.ndarray | None = None  # (rows,) places that see each other in full, where an objective
        #                                                says so
        self.seq2seq_rows: dict[str, PaddedRows] = {}  # what an encoder reads and a decoder writes, where there are two
        self.token_targets: dict[str, TokenTargets] = {}
        self.row_labels: dict[str, np.ndarray] = {}  # one label a row, by head
        self.unit_ids: np.ndarray | None = None  # (rows, length) numbers of the units that an objective hides whole
        self.extra_outputs: np.ndarray | None = None  # (rows, length) places whose output is read besides those scored
        self._ids: np.ndarray | None = None  # as edited; until then as laid out

    @property
    def rows(self) -> int:
        return self.spans.num_rows

    @cached_property
    def packed_rows(self) -> PackedRows:
        """The rows as they stand in the window; from the first look on, pieces move no more."""
        pieces = self._single_part(PART_NUMBERS["A"]) if self.template.separate_rows else self.spans
        return pack_rows(self.corpus, pieces, self.template, self.reversed_rows)

    def segment_b_draft(self) -> Draft:
        """Of rows whose two texts stand apart: those of B."""
        assert self.template.separate_rows, "A and B share their rows"
        return Draft(self.subset, self._single_part(PART_NUMBERS["B"]), self.template)

    def _single_part(self, part: int) -> RowSpans:
        """One part of each row, as A."""
        pieces = self.spans
        chosen = pieces.part == part
        return replace(pieces, row=pieces.row[chosen], start=pieces.start[chosen], length=pieces.length[chosen],
                       part=np.zeros(int(chosen.sum()), dtype=np.int8),
                       separator_before=pieces.separator_before[chosen])

    @property
    def input_ids(self) -> np.ndarray:
        """(rows, length) int32 tokens as the network will read them."""
        return self.packed_rows.input_ids if self._ids is None else self._ids

    @input_ids.setter
    def input_ids(self, value: np.ndarray) -> None:
        assert value.shape == self.input_ids.shape, "an objective must not change the draft's shape"
        self._ids = value

    @property
    def original_ids(self) -> np.ndarray:
        """(rows, length) the tokens before any objective hid or replaced one."""
        return self.packed_rows.input_ids

    @property
    def corpus_offsets(self) -> np.ndarray:
        """(rows, length) int64 offset in the corpus; -1 at special tokens and padding."""
        return self.packed_rows.corpus_offsets

    @cached_property
    def segment_ids(self) -> np.ndarray:
        """(rows, length) int64, from the template; in a dialogue the number of who speaks, with the separator that ends
        his turn."""
        if ROLES not in self.corpus.annotations():
            return self.packed_rows.segment_ids
        source = reverse_rows(self.corpus_offsets, self.lengths, self.reversed_rows)  # as the text runs
        text = source >= 0
        roles = np.zeros(source.shape, np.int64)  # 0: nobody
        roles[text] = self.corpus.values_at(ROLES, source[text])
        last = np.maximum.accumulate(np.where(text, np.arange(source.shape[1]), 0), axis=1)  # the text last met
        roles = np.take_along_axis(roles, last, axis=1)
        roles[np.arange(source.shape[1]) >= self.lengths[:, None]] = 0
        return np.where(roles > 0, reverse_rows(roles, self.lengths, self.reversed_rows) - 1,
                        self.packed_rows.segment_ids)

    def field(self, name: str) -> np.ndarray:
        """(rows, length, size) float32: the numbers that a field of the corpus has for each token, or for the document
        that a token is from; 0 at special tokens and padding."""
        return field_at(self.corpus, name, self.corpus_offsets)

    @property
    def lengths(self) -> np.ndarray:
        """(rows,) places in use; the rest is padding."""
        return self.packed_rows.lengths

    @property
    def reuse_lengths(self) -> np.ndarray:
        """(rows,) places of text at the front that the next batch goes on from; the template follows."""
        return self.packed_rows.reuse_lengths

    @property
    def is_text(self) -> np.ndarray:
        """(rows, length) True where a token of the text stands, not a special token or padding."""
        return self.corpus_offsets >= 0

    @cached_property
    def word_ids(self) -> np.ndarray:
        """(rows, length) int64: a number that is the same for the pieces of one word, counted over the whole batch;
        -1 where there is no text. A word cut by the window's edge counts as a word of its own."""
        return self.annotated_unit_ids(None)

    def annotated_unit_ids(self, name: str | None) -> np.ndarray:
        """(rows, length) numbers like those of `words`, of larger units: those that the side array `name` marks (1: one
        begins here, 2: it goes on), and words everywhere else. A unit's part inside the window is one of its own."""
        source = reverse_rows(self.corpus_offsets, self.lengths, self.reversed_rows)  # as the text runs
        text = source >= 0
        starts = np.zeros(source.shape, dtype=bool)
        starts[text] = self.corpus.values_at("word_starts", source[text])
        if name is not None:
            marks = np.zeros(source.shape, dtype=np.uint8)
            marks[text] = self.corpus.values_at(name, source[text])
            ended = np.zeros(source.shape, dtype=bool)  # a unit ended at the place before
            ended[:, 1:] = marks[:, :-1] > 0
            starts = np.where(marks == 0, starts | ended, marks == 1)
        broken = np.ones(source.shape, dtype=bool)  # the text does not go on from the place before
        broken[:, 1:] = source[:, 1:] != source[:, :-1] + 1
        numbers = np.cumsum((starts | broken) & text).reshape(source.shape) - 1
        return reverse_rows(np.where(text, numbers, -1), self.lengths, self.reversed_rows)

    def next_tokens(self) -> np.ndarray:
        """(rows, length) int32: the token that comes next in the order of reading, -1 where there is none. Behind the
        last place of running text its document goes on, or the separator stands that parts it from the next."""
        inside = np.arange(self.template.length) < self.lengths[:, None]
        following = np.full(inside.shape, -1, dtype=np.int32)
        following[:, :-1] = np.where(inside[:, 1:], self.original_ids[:, 1:], -1)
        if self.spans.continues_after:
            following[np.arange(self.rows), self.lengths - 1] = self._token_after_row()
        return following

    def segment_b_start(self) -> np.ndarray:
        """(rows,) the place at which B begins; a row's length where it has none."""
        before = [slot.name for slot in self.template.pair]
        special = sum(name not in PART_NUMBERS for name in before[:before.index("B")])
        begins = self.reuse_lengths + special + self.spans.part_lengths(0)
        return np.where(self.spans.part_lengths(1) > 0, begins, self.lengths)

    def _token_after_row(self) -> np.ndarray:
        """(rows,) the token of running text behind each row's last place; -1 where the template ends the row."""
        pieces, documents = self.spans, self.subset.document_ranges
        backward = np.zeros(self.rows, dtype=bool) if self.reversed_rows is None else self.reversed_rows
        first, stop = (np.searchsorted(pieces.row, np.arange(self.rows), side=side) for side in ("left", "right"))
        open_end = np.where(backward, self.template.single[0].name == "A", self.template.single[-1].name == "A")
        rows = np.flatnonzero((stop > first) & open_end)
        back = backward[rows]
        edge = np.where(back, first[rows], stop[rows] - 1)  # the piece that was read last
        start, end = pieces.start[edge], pieces.start[edge] + pieces.length[edge]
        document = np.searchsorted(documents[:, 0], start, side="right") - 1
        parted = back & pieces.separator_before[edge]  # the separator itself was read last: the document before ends
        #                                                here
        goes_on = np.where(back, start > documents[document, 0], end < documents[document, 1]) | parted
        token = np.where(back, start - 1, end)
        token[parted] = documents[document[parted] - 1, 1] - 1
        beyond = np.full(self.rows, -1, dtype=np.int32)
        beyond[rows] = self.template.special_ids.get(SEPARATOR, -1)
        beyond[rows[goes_on]] = self.corpus.values_at("tokens", token[goes_on])
        return beyond

    def add_token_targets(self, head: str, at: np.ndarray, labels: np.ndarray, are_token_ids: bool = True) -> None:
        """Ask `head` for a guess at the places where `at` is True, to be compared with `labels` there: tokens of the
        vocabulary or, if not `tokens`, classes."""
        index = np.flatnonzero(at)
        self.token_targets[head] = TokenTargets(index, labels.reshape(-1)[index].astype(np.int64),
                                                are_token_ids=are_token_ids)

    def add_query_targets(self, head: str, at: np.ndarray, labels: np.ndarray) -> None:
        """Like `score`, but `head` reads the second stream, which knows a place and not what stands there."""
        index = np.flatnonzero(at)
        self.token_targets[head] = TokenTargets(index, labels.reshape(-1)[index].astype(np.int64), query_stream=True)

    def add_row_labels(self, head: str, values: np.ndarray) -> None:
        """Ask `head` for one guess a row."""
        self.row_labels[head] = values.astype(np.int64)
