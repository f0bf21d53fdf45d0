"""Encoder and decoder rows of an encoder-decoder batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stemma.corpus.corpus import Corpus
from stemma.errors import UserError

ENCODER, DECODER = "encoder", "decoder"


@dataclass(frozen=True)
class PaddedRows:
    """Rows padded to the longest."""

    input_ids: np.ndarray  # (rows, L) int32
    lengths: np.ndarray  # (rows,) number of non-padding positions
    labels: np.ndarray | None = None  # (rows, L) int32; -1 is ignored
    position_ids: np.ndarray | None = None  # (rows, L) int64; None counts from 0
    # (rows, L) int64 corpus offset of the original token, -1 for none; None: unknown, and fields cannot be read.
    corpus_offsets: np.ndarray | None = None

    @classmethod
    def select(cls, ids: np.ndarray, mask: np.ndarray, pad_id: int, source: np.ndarray | None = None) -> PaddedRows:
        """The tokens selected by `mask`, moved to the front of each row."""
        lengths = mask.sum(1)
        return cls(compact_rows(ids, mask, pad_id).astype(np.int32), np.maximum(lengths, 1),
                   corpus_offsets=None if source is None else compact_rows(source, mask, -1))

    def shift_right(self, start_id: int, pad_id: int) -> PaddedRows:
        """Decoder rows for teacher forcing: inputs are shifted right by one, with `start_id` first; labels are the
        tokens."""
        is_token = np.arange(self.input_ids.shape[1]) < self.lengths[:, None]
        shifted = np.concatenate([np.full((len(self.input_ids), 1), start_id, dtype=np.int32), self.input_ids[:, :-1]],
                                 axis=1)
        return PaddedRows(np.where(is_token, shifted, pad_id).astype(np.int32), self.lengths,
                          np.where(is_token, self.input_ids, -1))


@dataclass(frozen=True)
class EncoderDraft:
    """The encoder rows of a sequence-to-sequence batch, with the part of Draft's interface that inputs use."""

    corpus: Corpus
    input_ids: np.ndarray  # (rows, L) token ids that the network gets
    corpus_offsets: np.ndarray  # (rows, L) offset in the corpus; -1 at special tokens and padding

    @classmethod
    def from_rows(cls, corpus: Corpus, rows: PaddedRows) -> EncoderDraft:
        if rows.corpus_offsets is None:
            raise UserError("an objective does not say where the tokens of its encoder's text are from "
                            "(PaddedRows.corpus_offsets), so network.inputs cannot read a field of them; leave "
                            "network.inputs out.")
        return cls(corpus, rows.input_ids, rows.corpus_offsets)

    @property
    def is_text(self) -> np.ndarray:
        return self.corpus_offsets >= 0

    @property
    def original_ids(self) -> np.ndarray:
        """(rows, L) token ids before any objective masks or replaces one."""
        ids = self.input_ids.copy()
        ids[self.is_text] = self.corpus.values_at("tokens", self.corpus_offsets[self.is_text])
        return ids

    def field(self, name: str) -> np.ndarray:
        return field_at(self.corpus, name, self.corpus_offsets)


def field_at(corpus: Corpus, name: str, source: np.ndarray) -> np.ndarray:
    """(rows, length, size) float32: values of a field at these corpus offsets; 0 if the offset is -1."""
    field, is_text = corpus.field(name), source >= 0
    values = np.zeros((*source.shape, field.size), np.float32)
    values[is_text] = field.at(source[is_text])
    return values


def compact_rows(values: np.ndarray, mask: np.ndarray, pad_id: int) -> np.ndarray:
    """(rows, longest) the values selected by `mask`, moved to the front of each row and padded."""
    lengths = mask.sum(1)
    compact = np.full((len(values), max(1, int(lengths.max(initial=0)))), pad_id, dtype=values.dtype)
    compact[np.arange(compact.shape[1]) < lengths[:, None]] = values[mask]
    return compact
