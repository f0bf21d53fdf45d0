"""A batch under construction: packed from spans, then edited by each objective of its group in recipe order.

Objectives that rearrange text edit `spans`. The first access to `input_ids` packs the rows by the recipe's template;
after that only tokens change. Everything is a (rows, length) array, so no objective loops over tokens.
A reversed row is stored in reading order: the end of its text comes first.
For an encoder-decoder the draft is the uncorrupted text, and an objective sets the two `seq2seq_rows`.
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
    """Positions with a prediction target: flat indices into (rows x length), and their labels."""

    index: np.ndarray
    labels: np.ndarray
    query_stream: bool = False  # predicted by the query stream, which does not attend to the token itself
    are_token_ids: bool = True  # labels are token ids; otherwise classes
    weights: np.ndarray | None = None  # of each loss; None: 1
    denominator: float | None = None  # the summed loss is divided by it; None: the number of targets


class Draft:
    def __init__(self, subset: CorpusSubset, spans: RowSpans, template: RowTemplate,
                 reversed_rows: np.ndarray | None = None, continues_previous: bool = False):
        self.subset = subset
        self.corpus = subset.corpus
        self.spans = spans
        self.template = template
        self.reversed_rows = reversed_rows  # (rows,) True for rows in right-to-left order; None: no row
        self.continues_previous = continues_previous  # each row continues the same row of the previous batch
        self.progress = 0.0  # used fraction of the budget, for objectives with a schedule
        self.factorization_order: np.ndarray | None = None  # (rows, length) rank in the order of a permutation LM
        self.prefix_lengths: np.ndarray | None = None  # (rows,) length of the bidirectional prefix of a prefix LM
        self.seq2seq_rows: dict[str, PaddedRows] = {}  # encoder and decoder rows of an encoder-decoder
        self.token_targets: dict[str, TokenTargets] = {}
        self.row_labels: dict[str, np.ndarray] = {}  # one label per row, by head
        self.unit_ids: np.ndarray | None = None  # (rows, length) ids of the units that an objective masks as a whole
        self.extra_outputs: np.ndarray | None = None  # (rows, length) positions that a head reads besides its targets
        self._ids: np.ndarray | None = None  # the edited ids; None until an objective edits them

    @property
    def rows(self) -> int:
        return self.spans.num_rows

    @cached_property
    def packed_rows(self) -> PackedRows:
        """The rows packed by the template. After the first access, changes of `spans` have no effect."""
        spans = self._single_part(PART_NUMBERS["A"]) if self.template.separate_rows else self.spans
        return pack_rows(self.corpus, spans, self.template, self.reversed_rows)

    def segment_b_draft(self) -> Draft:
        """Draft of the B segments, if A and B are separate rows."""
        assert self.template.separate_rows, "A and B share their rows"
        return Draft(self.subset, self._single_part(PART_NUMBERS["B"]), self.template)

    def _single_part(self, part: int) -> RowSpans:
        """One part of each row, as part A."""
        spans = self.spans
        in_part = spans.part == part
        return replace(spans, row=spans.row[in_part], start=spans.start[in_part], length=spans.length[in_part],
                       part=np.zeros(int(in_part.sum()), dtype=np.int8),
                       separator_before=spans.separator_before[in_part])

    @property
    def input_ids(self) -> np.ndarray:
        """(rows, length) int32 token ids that the network gets."""
        return self.packed_rows.input_ids if self._ids is None else self._ids

    @input_ids.setter
    def input_ids(self, value: np.ndarray) -> None:
        assert value.shape == self.input_ids.shape, "an objective must not change the draft's shape"
        self._ids = value

    @property
    def original_ids(self) -> np.ndarray:
        """(rows, length) token ids before any objective masks or replaces one."""
        return self.packed_rows.input_ids

    @property
    def corpus_offsets(self) -> np.ndarray:
        """(rows, length) int64 offset in the corpus; -1 at special tokens and padding."""
        return self.packed_rows.corpus_offsets

    @cached_property
    def segment_ids(self) -> np.ndarray:
        """(rows, length) int64 segment ids from the template; in a dialogue the index of the speaker, also at the
        separator that ends a turn."""
        if ROLES not in self.corpus.annotations():
            return self.packed_rows.segment_ids
        source = reverse_rows(self.corpus_offsets, self.lengths, self.reversed_rows)  # in text order
        is_text = source >= 0
        roles = np.zeros(source.shape, np.int64)  # 0: no speaker
        roles[is_text] = self.corpus.values_at(ROLES, source[is_text])
        last = np.maximum.accumulate(np.where(is_text, np.arange(source.shape[1]), 0), axis=1)  # last text position
        roles = np.take_along_axis(roles, last, axis=1)
        roles[np.arange(source.shape[1]) >= self.lengths[:, None]] = 0
        return np.where(roles > 0, reverse_rows(roles, self.lengths, self.reversed_rows) - 1,
                        self.packed_rows.segment_ids)

    def field(self, name: str) -> np.ndarray:
        """(rows, length, size) float32: values of a corpus field for each token or for the token's document; 0 at
        special tokens and padding."""
        return field_at(self.corpus, name, self.corpus_offsets)

    @property
    def lengths(self) -> np.ndarray:
        """(rows,) number of non-padding positions."""
        return self.packed_rows.lengths

    @property
    def reuse_lengths(self) -> np.ndarray:
        """(rows,) number of leading text positions that a memory reuses; the template follows them."""
        return self.packed_rows.reuse_lengths

    @property
    def is_text(self) -> np.ndarray:
        """(rows, length) True at text tokens, False at special tokens and padding."""
        return self.corpus_offsets >= 0

    @cached_property
    def word_ids(self) -> np.ndarray:
        """(rows, length) int64: word index, unique over the whole batch; -1 outside text. A word that the window cuts
        counts as a whole word."""
        return self.annotated_unit_ids(None)

    def annotated_unit_ids(self, name: str | None) -> np.ndarray:
        """(rows, length) indices like `word_ids`, of larger units: those that the annotation `name` marks (1: first
        token, 2: further tokens), and words everywhere else. A unit that the window cuts counts as a whole unit."""
        source = reverse_rows(self.corpus_offsets, self.lengths, self.reversed_rows)  # in text order
        is_text = source >= 0
        starts = np.zeros(source.shape, dtype=bool)
        starts[is_text] = self.corpus.values_at("word_starts", source[is_text])
        if name is not None:
            marks = np.zeros(source.shape, dtype=np.uint8)
            marks[is_text] = self.corpus.values_at(name, source[is_text])
            ended = np.zeros(source.shape, dtype=bool)  # a unit ends at the previous position
            ended[:, 1:] = marks[:, :-1] > 0
            starts = np.where(marks == 0, starts | ended, marks == 1)
        broken = np.ones(source.shape, dtype=bool)  # the text does not continue from the previous position
        broken[:, 1:] = source[:, 1:] != source[:, :-1] + 1
        unit_ids = np.cumsum((starts | broken) & is_text).reshape(source.shape) - 1
        return reverse_rows(np.where(is_text, unit_ids, -1), self.lengths, self.reversed_rows)

    def next_tokens(self) -> np.ndarray:
        """(rows, length) int32: the next token in reading order, -1 if there is none. After the last position of a row
        of running text this is the next token of the document, or the separator before the next document."""
        inside = np.arange(self.template.length) < self.lengths[:, None]
        following = np.full(inside.shape, -1, dtype=np.int32)
        following[:, :-1] = np.where(inside[:, 1:], self.original_ids[:, 1:], -1)
        if self.spans.continues_after:
            following[np.arange(self.rows), self.lengths - 1] = self._token_after_row()
        return following

    def segment_b_start(self) -> np.ndarray:
        """(rows,) position at which B begins; the row's length if it has no B."""
        slots = [slot.name for slot in self.template.pair]
        special = sum(name not in PART_NUMBERS for name in slots[:slots.index("B")])
        start = self.reuse_lengths + special + self.spans.part_lengths(0)
        return np.where(self.spans.part_lengths(1) > 0, start, self.lengths)

    def _token_after_row(self) -> np.ndarray:
        """(rows,) the token of running text after each row's last position; -1 if the template ends the row."""
        spans, documents = self.spans, self.subset.document_ranges
        backward = np.zeros(self.rows, dtype=bool) if self.reversed_rows is None else self.reversed_rows
        first, stop = (np.searchsorted(spans.row, np.arange(self.rows), side=side) for side in ("left", "right"))
        open_end = np.where(backward, self.template.single[0].name == "A", self.template.single[-1].name == "A")
        rows = np.flatnonzero((stop > first) & open_end)
        back = backward[rows]
        edge = np.where(back, first[rows], stop[rows] - 1)  # the last span in reading order
        start, end = spans.start[edge], spans.start[edge] + spans.length[edge]
        document = np.searchsorted(documents[:, 0], start, side="right") - 1
        # Reversed, a row may end with a separator: the last token of the previous document comes next.
        after_separator = back & spans.separator_before[edge]
        continues = np.where(back, start > documents[document, 0], end < documents[document, 1]) | after_separator
        token = np.where(back, start - 1, end)
        token[after_separator] = documents[document[after_separator] - 1, 1] - 1
        next_ids = np.full(self.rows, -1, dtype=np.int32)
        next_ids[rows] = self.template.special_ids.get(SEPARATOR, -1)
        next_ids[rows[continues]] = self.corpus.values_at("tokens", token[continues])
        return next_ids

    def add_token_targets(self, head: str, at: np.ndarray, labels: np.ndarray, are_token_ids: bool = True,
                          row_weights: np.ndarray | None = None, denominator: float | None = None) -> None:
        """`head` predicts `labels` at the positions where `at` is True: token ids or, if not `are_token_ids`,
        classes. `row_weights` (rows,) multiply the losses of a row; `denominator` divides their sum, by default the
        number of targets."""
        index = np.flatnonzero(at)
        weights = None if row_weights is None else row_weights[index // at.shape[1]].astype(np.float32)
        self.token_targets[head] = TokenTargets(index, labels.reshape(-1)[index].astype(np.int64),
                                                are_token_ids=are_token_ids, weights=weights, denominator=denominator)

    def add_query_targets(self, head: str, at: np.ndarray, labels: np.ndarray) -> None:
        """Like `add_token_targets`, but `head` reads the query stream, which has the position but not the token."""
        index = np.flatnonzero(at)
        self.token_targets[head] = TokenTargets(index, labels.reshape(-1)[index].astype(np.int64), query_stream=True)

    def add_row_labels(self, head: str, values: np.ndarray) -> None:
        """`head` predicts one label per row."""
        self.row_labels[head] = values.astype(np.int64)
