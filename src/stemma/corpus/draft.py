"""A batch being prepared: laid out from pieces, then edited by each objective of its group in recipe order.

Objectives that rearrange text edit `pieces`; the first look at `ids` lays the rows out by the recipe's template, and
from then on only tokens change. Everything is a (rows, length) array, so no objective ever loops over tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stemma.corpus.pieces import Pieces
from stemma.corpus.shards import Corpus
from stemma.corpus.view import View
from stemma.errors import UserError
from stemma.schema.corpus import Slot, parse_template
from stemma.text.tokenizer import Tokenizer

PARTS = {"A": 0, "B": 1}


@dataclass(frozen=True)
class Layout:
    """How rows are laid out: the two templates with their roles resolved, and the window's length."""

    single: list[Slot]
    pair: list[Slot]
    length: int
    roles: dict[str, int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, single: str, pair: str, length: int) -> Layout:
        slots = parse_template(single), parse_template(pair)
        roles = dict(tokenizer.roles)
        roles.setdefault("padding", 0)  # only a filler, which nobody sees
        if "end" in roles:
            roles.setdefault("separator", roles["end"])
        return cls(*slots, length, roles)

    def capacity(self, pair: bool) -> int:
        """How many tokens of text fit; a pair must fit the other template too, which serves where B is missing."""
        templates = (self.single, self.pair) if pair else (self.single,)
        room = self.length - max(sum(slot.name not in PARTS for slot in template) for template in templates)
        if room < (2 if pair else 1):
            raise UserError(f"a sequence_length of {self.length} leaves no room for text beside the special tokens; "
                            "set corpus.sequence_length higher.")
        return room


@dataclass(frozen=True)
class Scored:
    """Places that carry a target: flat indices into (rows x length), and what should be guessed there."""

    index: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Laid:
    """Rows laid out by their template: (rows, length) arrays, and how many places of each row are in use."""

    ids: np.ndarray
    source: np.ndarray
    segments: np.ndarray
    lengths: np.ndarray


class Draft:
    def __init__(self, view: View, pieces: Pieces, layout: Layout):
        self.view = view
        self.corpus = view.corpus
        self.pieces = pieces
        self.layout = layout
        self.scores: dict[str, Scored] = {}
        self.labels: dict[str, np.ndarray] = {}  # one label a row, by head
        self._ids: np.ndarray | None = None  # as edited; until then as laid out

    @property
    def rows(self) -> int:
        return self.pieces.rows

    @cached_property
    def laid(self) -> Laid:
        """The rows as they stand in the window; from the first look on, pieces move no more."""
        return _lay_out(self.corpus, self.pieces, self.layout)

    @property
    def ids(self) -> np.ndarray:
        """(rows, length) int32 tokens as the network will read them."""
        return self.laid.ids if self._ids is None else self._ids

    @ids.setter
    def ids(self, value: np.ndarray) -> None:
        assert value.shape == self.ids.shape, "an objective must not change the draft's shape"
        self._ids = value

    @property
    def original(self) -> np.ndarray:
        """(rows, length) the tokens before any objective hid or replaced one."""
        return self.laid.ids

    @property
    def source(self) -> np.ndarray:
        """(rows, length) int64 offset in the corpus; -1 at special tokens and padding."""
        return self.laid.source

    @property
    def segments(self) -> np.ndarray:
        """(rows, length) int64, from the template."""
        return self.laid.segments

    @property
    def lengths(self) -> np.ndarray:
        """(rows,) places in use; the rest is padding."""
        return self.laid.lengths

    @property
    def text(self) -> np.ndarray:
        """(rows, length) True where a token of the text stands, not a special token or padding."""
        return self.source >= 0

    @cached_property
    def words(self) -> np.ndarray:
        """(rows, length) int64: a number that is the same for the pieces of one word, counted over the whole batch;
        -1 where there is no text. A word cut by the window's edge counts as a word of its own."""
        source, text = self.source, self.text
        starts = np.zeros(source.shape, dtype=bool)
        starts[text] = self.corpus.take("word_starts", source[text])
        broken = np.ones(source.shape, dtype=bool)  # the text does not go on from the place before
        broken[:, 1:] = source[:, 1:] != source[:, :-1] + 1
        numbers = np.cumsum((starts | broken) & text).reshape(source.shape) - 1
        return np.where(text, numbers, -1)

    def score(self, head: str, at: np.ndarray, labels: np.ndarray) -> None:
        """Ask `head` for a guess at the places where `at` is True, to be compared with `labels` there."""
        index = np.flatnonzero(at)
        self.scores[head] = Scored(index, labels.reshape(-1)[index].astype(np.int64))

    def label(self, head: str, values: np.ndarray) -> None:
        """Ask `head` for one guess a row."""
        self.labels[head] = values.astype(np.int64)


def _lay_out(corpus: Corpus, pieces: Pieces, layout: Layout) -> Laid:
    """Place every piece and special token by the template: a sort and two repeats, no loop over rows."""
    paired = pieces.part_lengths(1) > 0
    columns: list[tuple[np.ndarray, ...]] = []  # row, slot, order in slot, start (-1: special), length, id, segment
    for wanted, template in ((False, layout.single), (True, layout.pair)):
        rows = np.flatnonzero(paired == wanted)
        if not len(rows):
            continue  # the template's roles may be ones that this tokenizer lacks
        inside = paired[pieces.row] == wanted
        for number, slot in enumerate(template):
            if slot.name not in PARTS:
                columns.append(_elements(rows, number, 0, -1, 1, layout.roles[slot.name], slot.segment))
                continue
            chosen = np.flatnonzero(inside & (pieces.part == PARTS[slot.name]) & (pieces.length > 0))
            columns.append(_elements(pieces.row[chosen], number, 2 * chosen + 1, pieces.start[chosen],
                                     pieces.length[chosen], -1, slot.segment))
            if "separator" in layout.roles:  # otherwise documents meet unmarked
                parted = chosen[pieces.gap[chosen]]
                columns.append(_elements(pieces.row[parted], number, 2 * parted, -1, 1, layout.roles["separator"],
                                         slot.segment))
    row, slot_number, order, start, length, role, segment = (np.concatenate(c) for c in zip(*columns, strict=True))
    sorted_by = np.lexsort((order, slot_number, row))
    row, start, length, role, segment = (a[sorted_by] for a in (row, start, length, role, segment))

    end = np.cumsum(length)
    lengths = np.bincount(row, weights=length, minlength=pieces.rows).astype(np.int64)
    before_row = np.cumsum(lengths) - lengths
    offset = end - length - before_row[row]  # where the element begins in its row
    assert (lengths <= layout.length).all(), "a packer made a row longer than the window"

    within = np.arange(end[-1] if len(end) else 0) - np.repeat(end - length, length)
    place = np.repeat(row * layout.length + offset, length) + within
    source = np.where(np.repeat(start, length) >= 0, np.repeat(start, length) + within, -1)
    text = source >= 0
    tokens = np.repeat(role, length).astype(np.int32)
    tokens[text] = corpus.take("tokens", source[text])

    def window(filling: int, values: np.ndarray) -> np.ndarray:
        made = np.full((pieces.rows, layout.length), filling, dtype=values.dtype)
        made.reshape(-1)[place] = values
        made.setflags(write=False)  # an objective hands in new ids; what was there before stays to be guessed
        return made

    return Laid(window(layout.roles["padding"], tokens), window(-1, source), window(0, np.repeat(segment, length)),
                lengths)


def _elements(rows: np.ndarray, slot: int, order: np.ndarray | int, start: np.ndarray | int, length: np.ndarray | int,
              role: int, segment: int) -> tuple[np.ndarray, ...]:
    shape = rows.shape
    values = (slot, order, start, length, role, segment)
    return (rows, *(np.broadcast_to(np.asarray(value, dtype=np.int64), shape) for value in values))
