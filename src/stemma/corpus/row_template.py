"""Packs rows into token arrays by a template of segments and special tokens, all rows of a batch at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stemma.corpus.corpus import Corpus
from stemma.corpus.row_spans import RowSpans
from stemma.errors import UserError
from stemma.schema.corpus import TemplateSlot, parse_template
from stemma.text.tokenizer import Tokenizer

PAST = TemplateSlot("past", 0)  # comes before the template; fine-tuning has no past and uses the template alone
PART_NUMBERS = {"A": 0, "B": 1, PAST.name: 2}
SEPARATOR = "boundary"  # role of the token between two documents of one row
DECODER_START = "decoder_start"  # role of the decoder's first input token


@dataclass(frozen=True)
class RowTemplate:
    """The templates for one and two segments, the ids of their special tokens, and the sequence length."""

    single: list[TemplateSlot]
    pair: list[TemplateSlot]
    length: int
    special_ids: dict[str, int]
    reuse_length: int = 0  # leading positions for text that the memory reuses in the next batch
    separate_rows: bool = False  # A and B are separate rows, each packed by `single` (encoder-decoder)

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, single: str, pair: str, length: int, reuse_length: int = 0,
                       boundary: str = "separator", decoder_start: str | None = None) -> RowTemplate:
        slots = parse_template(single), parse_template(pair)
        roles = dict(tokenizer.special_token_ids)
        roles.setdefault("padding", 0)  # any id is valid: padding is masked out
        separator = tokenizer.document_separator_id(boundary) if boundary != "none" else None
        if separator is not None:
            roles[SEPARATOR] = separator
        if decoder_start is not None:
            roles[DECODER_START] = roles[decoder_start]
        return cls(*slots, length, roles, reuse_length, decoder_start is not None)

    @property
    def has_separator(self) -> bool:
        """Whether a token separates consecutive documents."""
        return SEPARATOR in self.special_ids

    def capacity(self, pair: bool) -> int:
        """Number of text tokens that fit. A pair must also fit the `single` template, which is used if B is missing."""
        templates = (self.single, self.pair) if pair else (self.single,)
        capacity = self.length - self.reuse_length - max(sum(slot.name not in PART_NUMBERS for slot in template)
                                                         for template in templates)
        if capacity < (2 if pair else 1):
            raise UserError(f"a sequence_length of {self.length} leaves no room for text beside the special tokens; "
                            "set corpus.sequence_length higher.")
        return capacity


@dataclass(frozen=True)
class PackedRows:
    """Rows packed by their template: (rows, length) arrays, and the number of non-padding positions of each row."""

    input_ids: np.ndarray
    corpus_offsets: np.ndarray
    segment_ids: np.ndarray
    lengths: np.ndarray
    reuse_lengths: np.ndarray  # (rows,) number of leading positions that are the past


def reverse_rows(values: np.ndarray, lengths: np.ndarray, reversed_rows: np.ndarray | None) -> np.ndarray:
    """(rows, length) with the non-padding positions of reversed rows from last to first. It is its own inverse."""
    if reversed_rows is None or not reversed_rows.any():
        return values
    position = np.arange(values.shape[1])
    mirrored = reversed_rows[:, None] & (position < lengths[:, None])
    return np.take_along_axis(values, np.where(mirrored, lengths[:, None] - 1 - position, position), axis=1)


def pack_rows(corpus: Corpus, spans: RowSpans, row_template: RowTemplate,
              reversed_rows: np.ndarray | None) -> PackedRows:
    """Pack spans and special tokens by the template: one sort and two repeats, no loop over rows.

    A reversed row is packed in text order, then reversed as a whole. A past must come first in reading order, so with a
    past the template is reversed beforehand (XLNet's rows: past, A, B, special tokens last).
    """
    written = (spans.length > 0) | (spans.separator_before & row_template.has_separator)
    paired = np.zeros(spans.num_rows, dtype=bool)
    paired[spans.row[written & (spans.part == 1)]] = True
    reverse_template = np.zeros(spans.num_rows, dtype=bool)
    if reversed_rows is not None and row_template.reuse_length:
        reverse_template = reversed_rows
    past = [PAST] if row_template.reuse_length else []
    columns: list[tuple[np.ndarray, ...]] = []  # row, slot, order in slot, start (-1: special), length, id, segment
    for template, of_pair, reverse in ((row_template.single, False, False), (row_template.pair, True, False),
                                       (row_template.single, False, True), (row_template.pair, True, True)):
        uses_template = (paired == of_pair) & (reverse_template == reverse)
        rows = np.flatnonzero(uses_template)
        if not len(rows):
            continue  # an unused template may have roles that this tokenizer lacks
        inside = uses_template[spans.row] & written
        slots = [*past, *template]
        for index, slot in enumerate(slots[::-1] if reverse else slots):
            if slot.name not in PART_NUMBERS:
                columns.append(_elements(rows, index, 0, -1, 1, row_template.special_ids[slot.name], slot.segment))
                continue
            text = np.flatnonzero(inside & (spans.part == PART_NUMBERS[slot.name]))
            columns.append(_elements(spans.row[text], index, 2 * text + 1, spans.start[text],
                                     spans.length[text], -1, slot.segment))
            if row_template.has_separator:
                separated = text[spans.separator_before[text]]
                columns.append(_elements(spans.row[separated], index, 2 * separated, -1, 1,
                                         row_template.special_ids[SEPARATOR], slot.segment))
    row, slot_index, order, start, length, role, segment = (np.concatenate(c) for c in zip(*columns, strict=True))
    sorted_by = np.lexsort((order, slot_index, row))
    row, start, length, role, segment = (a[sorted_by] for a in (row, start, length, role, segment))

    end = np.cumsum(length)
    lengths = np.bincount(row, weights=length, minlength=spans.num_rows).astype(np.int64)
    before_row = np.cumsum(lengths) - lengths
    offset = end - length - before_row[row]  # where the element begins in its row
    assert (lengths <= row_template.length).all(), "a packer made a row longer than the window"

    within = np.arange(end[-1] if len(end) else 0) - np.repeat(end - length, length)
    position = np.repeat(row * row_template.length + offset, length) + within
    source = np.where(np.repeat(start, length) >= 0, np.repeat(start, length) + within, -1)
    is_text = source >= 0
    tokens = np.repeat(role, length).astype(np.int32)
    tokens[is_text] = corpus.values_at("tokens", source[is_text])

    def window(pad_value: int, values: np.ndarray) -> np.ndarray:
        padded = np.full((spans.num_rows, row_template.length), pad_value, dtype=values.dtype)
        padded.reshape(-1)[position] = values
        padded = reverse_rows(padded, lengths, reversed_rows)
        padded.setflags(write=False)  # an objective sets new ids; these remain as labels
        return padded

    in_past = written & (spans.part == PART_NUMBERS[PAST.name])
    num_positions = spans.length + (spans.separator_before & row_template.has_separator)
    return PackedRows(window(row_template.special_ids["padding"], tokens), window(-1, source),
                      window(0, np.repeat(segment, length)),
                      np.maximum(lengths, 1),  # an empty row (a finished lane) has one padding token
                      np.bincount(spans.row[in_past], weights=num_positions[in_past],
                                  minlength=spans.num_rows).astype(np.int64))


def _elements(rows: np.ndarray, slot: int, order: np.ndarray | int, start: np.ndarray | int, length: np.ndarray | int,
              token_id: int, segment: int) -> tuple[np.ndarray, ...]:
    shape = rows.shape
    values = (slot, order, start, length, token_id, segment)
    return (rows, *(np.broadcast_to(np.asarray(value, dtype=np.int64), shape) for value in values))
