"""How rows are laid out in a window: by a template of texts and special tokens, all rows of a batch at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stemma.corpus.corpus import Corpus
from stemma.corpus.row_spans import RowSpans
from stemma.errors import UserError
from stemma.schema.corpus import TemplateSlot, parse_template
from stemma.text.tokenizer import Tokenizer

PAST = TemplateSlot("past", 0)  # laid before the template; fine-tuning, which has no past, uses the template alone
PART_NUMBERS = {"A": 0, "B": 1, PAST.name: 2}
SEPARATOR = "boundary"  # whatever token parts two documents of one row
DECODER_START = "decoder_start"  # whatever token a decoder reads first


@dataclass(frozen=True)
class RowTemplate:
    """How rows are laid out: the two templates with their roles resolved, and the window's length."""

    single: list[TemplateSlot]
    pair: list[TemplateSlot]
    length: int
    special_ids: dict[str, int]
    reuse_length: int = 0  # places at a row's front for text that the next batch's row goes on from
    separate_rows: bool = False  # A and B are rows of their own, each laid out by `single` (encoder-decoder)

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, single: str, pair: str, length: int, reuse_length: int = 0,
                       boundary: str = "separator",
           decoder_start: str | None = None) -> RowTemplate:
        slots = parse_template(single), parse_template(pair)
        roles = dict(tokenizer.special_token_ids)
        roles.setdefault("padding", 0)  # only a filler, which nobody sees
        parting = tokenizer.document_separator_id(boundary) if boundary != "none" else None
        if parting is not None:
            roles[SEPARATOR] = parting
        if decoder_start is not None:
            roles[DECODER_START] = roles[decoder_start]
        return cls(*slots, length, roles, reuse_length, decoder_start is not None)

    @property
    def has_separator(self) -> bool:
        """Whether documents that meet are parted by a token."""
        return SEPARATOR in self.special_ids

    def capacity(self, pair: bool) -> int:
        """How many tokens of text fit; a pair must fit the other template too, which serves where B is missing."""
        templates = (self.single, self.pair) if pair else (self.single,)
        room = self.length - self.reuse_length - max(sum(slot.name not in PART_NUMBERS for slot in template)
                                                     for template in templates)
        if room < (2 if pair else 1):
            raise UserError(f"a sequence_length of {self.length} leaves no room for text beside the special tokens; "
                            "set corpus.sequence_length higher.")
        return room


@dataclass(frozen=True)
class PackedRows:
    """Rows laid out by their template: (rows, length) arrays, and how many places of each row are in use."""

    input_ids: np.ndarray
    corpus_offsets: np.ndarray
    segment_ids: np.ndarray
    lengths: np.ndarray
    reuse_lengths: np.ndarray  # (rows,) how many of its places, from the first, are the past


def reverse_rows(values: np.ndarray, lengths: np.ndarray, reversed_rows: np.ndarray | None) -> np.ndarray:
    """(rows, length) with the places in use of backward rows from last to first; doing it twice undoes it."""
    if reversed_rows is None or not reversed_rows.any():
        return values
    place = np.arange(values.shape[1])
    mirrored = reversed_rows[:, None] & (place < lengths[:, None])
    return np.take_along_axis(values, np.where(mirrored, lengths[:, None] - 1 - place, place), axis=1)


def pack_rows(corpus: Corpus, spans: RowSpans, row_template: RowTemplate,
              reversed_rows: np.ndarray | None) -> PackedRows:
    """Place every piece and special token by the template: a sort and two repeats, no loop over rows.

    A backward row is laid out as the text runs, then turned as a whole. Where a past comes first it must come first in
    the order of reading, so there the template is turned beforehand (XLNet's rows: past, A, B, special tokens last).
    """
    written = (spans.length > 0) | (spans.separator_before & row_template.has_separator)
    paired = np.zeros(spans.num_rows, dtype=bool)
    paired[spans.row[written & (spans.part == 1)]] = True
    early = np.zeros(spans.num_rows, dtype=bool) if reversed_rows is None or not row_template.reuse_length else reversed_rows
    past = [PAST] if row_template.reuse_length else []
    columns: list[tuple[np.ndarray, ...]] = []  # row, slot, order in slot, start (-1: special), length, id, segment
    for template, of_pair, turn in ((row_template.single, False, False), (row_template.pair, True, False),
                                    (row_template.single, False, True), (row_template.pair, True, True)):
        wanted = (paired == of_pair) & (early == turn)
        rows = np.flatnonzero(wanted)
        if not len(rows):
            continue  # the template's roles may be ones that this tokenizer lacks
        inside = wanted[spans.row] & written
        slots = [*past, *template]
        for number, slot in enumerate(slots[::-1] if turn else slots):
            if slot.name not in PART_NUMBERS:
                columns.append(_elements(rows, number, 0, -1, 1, row_template.special_ids[slot.name], slot.segment))
                continue
            chosen = np.flatnonzero(inside & (spans.part == PART_NUMBERS[slot.name]))
            columns.append(_elements(spans.row[chosen], number, 2 * chosen + 1, spans.start[chosen],
                                     spans.length[chosen], -1, slot.segment))
            if row_template.has_separator:  # otherwise documents meet unmarked
                parted = chosen[spans.separator_before[chosen]]
                columns.append(_elements(spans.row[parted], number, 2 * parted, -1, 1,
                                         row_template.special_ids[SEPARATOR],
                                         slot.segment))
    row, slot_number, order, start, length, role, segment = (np.concatenate(c) for c in zip(*columns, strict=True))
    sorted_by = np.lexsort((order, slot_number, row))
    row, start, length, role, segment = (a[sorted_by] for a in (row, start, length, role, segment))

    end = np.cumsum(length)
    lengths = np.bincount(row, weights=length, minlength=spans.num_rows).astype(np.int64)
    before_row = np.cumsum(lengths) - lengths
    offset = end - length - before_row[row]  # where the element begins in its row
    assert (lengths <= row_template.length).all(), "a packer made a row longer than the window"

    within = np.arange(end[-1] if len(end) else 0) - np.repeat(end - length, length)
    place = np.repeat(row * row_template.length + offset, length) + within
    source = np.where(np.repeat(start, length) >= 0, np.repeat(start, length) + within, -1)
    text = source >= 0
    tokens = np.repeat(role, length).astype(np.int32)
    tokens[text] = corpus.values_at("tokens", source[text])

    def window(filling: int, values: np.ndarray) -> np.ndarray:
        made = np.full((spans.num_rows, row_template.length), filling, dtype=values.dtype)
        made.reshape(-1)[place] = values
        made = reverse_rows(made, lengths, reversed_rows)
        made.setflags(write=False)  # an objective hands in new ids; what was there before stays to be guessed
        return made

    of_past = written & (spans.part == PART_NUMBERS[PAST.name])
    places = spans.length + (spans.separator_before & row_template.has_separator)
    return PackedRows(window(row_template.special_ids["padding"], tokens), window(-1, source),
                      window(0, np.repeat(segment, length)),
                np.maximum(lengths, 1),  # where a column of running text has ended, one place of filling stands
                np.bincount(spans.row[of_past], weights=places[of_past], minlength=spans.num_rows).astype(np.int64))


def _elements(rows: np.ndarray, slot: int, order: np.ndarray | int, start: np.ndarray | int, length: np.ndarray | int,
              token_id: int, segment: int) -> tuple[np.ndarray, ...]:
    shape = rows.shape
    values = (slot, order, start, length, token_id, segment)
    return (rows, *(np.broadcast_to(np.asarray(value, dtype=np.int64), shape) for value in values))
