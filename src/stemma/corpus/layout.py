"""How rows are laid out in a window: by a template of texts and special tokens, all rows of a batch at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stemma.corpus.pieces import Pieces
from stemma.corpus.shards import Corpus
from stemma.errors import UserError
from stemma.schema.corpus import Slot, parse_template
from stemma.text.tokenizer import Tokenizer

PAST = Slot("past", 0)  # laid before the template; fine-tuning, which has no past, uses the template alone
PARTS = {"A": 0, "B": 1, PAST.name: 2}
BOUNDARY = "boundary"  # whatever token parts two documents of one row
DECODER_START = "decoder_start"  # whatever token a decoder reads first


@dataclass(frozen=True)
class Layout:
    """How rows are laid out: the two templates with their roles resolved, and the window's length."""

    single: list[Slot]
    pair: list[Slot]
    length: int
    roles: dict[str, int]
    past: int = 0  # places at a row's front for text that the next batch's row goes on from
    apart: bool = False  # A and B are rows of their own, each laid out by `single` (encoder-decoder)

    @classmethod
    def of(cls, tokenizer: Tokenizer, single: str, pair: str, length: int, past: int = 0, boundary: str = "separator",
           decoder_start: str | None = None) -> Layout:
        slots = parse_template(single), parse_template(pair)
        roles = dict(tokenizer.roles)
        roles.setdefault("padding", 0)  # only a filler, which nobody sees
        parting = tokenizer.boundary(boundary) if boundary != "none" else None
        if parting is not None:
            roles[BOUNDARY] = parting
        if decoder_start is not None:
            roles[DECODER_START] = roles[decoder_start]
        return cls(*slots, length, roles, past, decoder_start is not None)

    @property
    def separated(self) -> bool:
        """Whether documents that meet are parted by a token."""
        return BOUNDARY in self.roles

    def capacity(self, pair: bool) -> int:
        """How many tokens of text fit; a pair must fit the other template too, which serves where B is missing."""
        templates = (self.single, self.pair) if pair else (self.single,)
        room = self.length - self.past - max(sum(slot.name not in PARTS for slot in template) for template in templates)
        if room < (2 if pair else 1):
            raise UserError(f"a sequence_length of {self.length} leaves no room for text beside the special tokens; "
                            "set corpus.sequence_length higher.")
        return room


@dataclass(frozen=True)
class Laid:
    """Rows laid out by their template: (rows, length) arrays, and how many places of each row are in use."""

    ids: np.ndarray
    source: np.ndarray
    segments: np.ndarray
    lengths: np.ndarray
    past: np.ndarray  # (rows,) how many of its places, from the first, are the past


def turned(values: np.ndarray, lengths: np.ndarray, backward: np.ndarray | None) -> np.ndarray:
    """(rows, length) with the places in use of backward rows from last to first; doing it twice undoes it."""
    if backward is None or not backward.any():
        return values
    place = np.arange(values.shape[1])
    mirrored = backward[:, None] & (place < lengths[:, None])
    return np.take_along_axis(values, np.where(mirrored, lengths[:, None] - 1 - place, place), axis=1)


def lay_out(corpus: Corpus, pieces: Pieces, layout: Layout, backward: np.ndarray | None) -> Laid:
    """Place every piece and special token by the template: a sort and two repeats, no loop over rows.

    A backward row is laid out as the text runs, then turned as a whole. Where a past comes first it must come first in
    the order of reading, so there the template is turned beforehand (XLNet's rows: past, A, B, special tokens last).
    """
    written = (pieces.length > 0) | (pieces.gap & layout.separated)
    paired = np.zeros(pieces.rows, dtype=bool)
    paired[pieces.row[written & (pieces.part == 1)]] = True
    early = np.zeros(pieces.rows, dtype=bool) if backward is None or not layout.past else backward
    past = [PAST] if layout.past else []
    columns: list[tuple[np.ndarray, ...]] = []  # row, slot, order in slot, start (-1: special), length, id, segment
    for template, of_pair, turn in ((layout.single, False, False), (layout.pair, True, False),
                                    (layout.single, False, True), (layout.pair, True, True)):
        wanted = (paired == of_pair) & (early == turn)
        rows = np.flatnonzero(wanted)
        if not len(rows):
            continue  # the template's roles may be ones that this tokenizer lacks
        inside = wanted[pieces.row] & written
        slots = [*past, *template]
        for number, slot in enumerate(slots[::-1] if turn else slots):
            if slot.name not in PARTS:
                columns.append(_elements(rows, number, 0, -1, 1, layout.roles[slot.name], slot.segment))
                continue
            chosen = np.flatnonzero(inside & (pieces.part == PARTS[slot.name]))
            columns.append(_elements(pieces.row[chosen], number, 2 * chosen + 1, pieces.start[chosen],
                                     pieces.length[chosen], -1, slot.segment))
            if layout.separated:  # otherwise documents meet unmarked
                parted = chosen[pieces.gap[chosen]]
                columns.append(_elements(pieces.row[parted], number, 2 * parted, -1, 1, layout.roles[BOUNDARY],
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
        made = turned(made, lengths, backward)
        made.setflags(write=False)  # an objective hands in new ids; what was there before stays to be guessed
        return made

    of_past = written & (pieces.part == PARTS[PAST.name])
    places = pieces.length + (pieces.gap & layout.separated)
    return Laid(window(layout.roles["padding"], tokens), window(-1, source), window(0, np.repeat(segment, length)),
                np.maximum(lengths, 1),  # where a column of running text has ended, one place of filling stands
                np.bincount(pieces.row[of_past], weights=places[of_past], minlength=pieces.rows).astype(np.int64))


def _elements(rows: np.ndarray, slot: int, order: np.ndarray | int, start: np.ndarray | int, length: np.ndarray | int,
              role: int, segment: int) -> tuple[np.ndarray, ...]:
    shape = rows.shape
    values = (slot, order, start, length, role, segment)
    return (rows, *(np.broadcast_to(np.asarray(value, dtype=np.int64), shape) for value in values))
