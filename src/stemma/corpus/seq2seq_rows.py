"""The two texts of an encoder-decoder's example, each in rows of its own: what is read, and what is written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stemma.corpus.corpus import Corpus
from stemma.errors import UserError

ENCODER, DECODER = "encoder", "decoder"


@dataclass(frozen=True)
class PaddedRows:
    """Rows that are filled up to the longest."""

    input_ids: np.ndarray  # (rows, L) int32
    lengths: np.ndarray  # (rows,) places in use
    labels: np.ndarray | None = None  # (rows, L) int32 what each place should guess; -1: nothing
    position_ids: np.ndarray | None = None  # (rows, L) int64; None counts from 0
    corpus_offsets: np.ndarray | None = None  # (rows, L) int64 offset in the corpus of the token that stood here first, -1 for
    #                                   none; None: it is not known, and nothing beside the tokens can be read

    @classmethod
    def select(cls, ids: np.ndarray, mask: np.ndarray, pad_id: int, source: np.ndarray | None = None) -> PaddedRows:
        """What is kept of each row moves together."""
        lengths = mask.sum(1)
        return cls(compact_rows(ids, mask, pad_id).astype(np.int32), np.maximum(lengths, 1),
                   corpus_offsets=None if source is None else compact_rows(source, mask, -1))

    def shift_right(self, start_id: int, pad_id: int) -> PaddedRows:
        """This text as a decoder meets it: each place reads the token before, the first one `start`, and guesses its
        own (teacher forcing)."""
        used = np.arange(self.input_ids.shape[1]) < self.lengths[:, None]
        read = np.concatenate([np.full((len(self.input_ids), 1), start_id, dtype=np.int32), self.input_ids[:, :-1]],
                              axis=1)
        return PaddedRows(np.where(used, read, pad_id).astype(np.int32), self.lengths,
                          np.where(used, self.input_ids, -1))


@dataclass(frozen=True)
class EncoderDraft:
    """The encoder rows of a sequence-to-sequence batch, with the part of Draft's interface that inputs read."""

    corpus: Corpus
    input_ids: np.ndarray  # (rows, L) as the network reads them
    corpus_offsets: np.ndarray  # (rows, L) offset in the corpus; -1 at special tokens and padding

    @classmethod
    def from_rows(cls, corpus: Corpus, rows: PaddedRows) -> EncoderDraft:
        if rows.corpus_offsets is None:
            raise UserError("an objective does not say where the tokens of its encoder's text are from (PaddedRows.corpus_offsets), "
                            "so that nothing beside them can be read; leave network.inputs out.")
        return cls(corpus, rows.input_ids, rows.corpus_offsets)

    @property
    def is_text(self) -> np.ndarray:
        return self.corpus_offsets >= 0

    @property
    def original_ids(self) -> np.ndarray:
        """(rows, L) the tokens before any objective hid or replaced one."""
        found = self.input_ids.copy()
        found[self.is_text] = self.corpus.values_at("tokens", self.corpus_offsets[self.is_text])
        return found

    def field(self, name: str) -> np.ndarray:
        return field_at(self.corpus, name, self.corpus_offsets)


def field_at(corpus: Corpus, name: str, source: np.ndarray) -> np.ndarray:
    """(rows, length, size) float32: what a field has at these offsets; 0 where the offset is -1."""
    field, text = corpus.field(name), source >= 0
    values = np.zeros((*source.shape, field.size), np.float32)
    values[text] = field.at(source[text])
    return values


def compact_rows(values: np.ndarray, mask: np.ndarray, pad_id: int) -> np.ndarray:
    """(rows, longest) the kept values of each row side by side, from its first place on."""
    lengths = mask.sum(1)
    made = np.full((len(values), max(1, int(lengths.max(initial=0)))), pad_id, dtype=values.dtype)
    made[np.arange(made.shape[1]) < lengths[:, None]] = values[mask]
    return made
