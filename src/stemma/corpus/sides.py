"""The two texts of an encoder-decoder's example, each in rows of its own: what is read, and what is written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stemma.corpus.shards import Corpus
from stemma.errors import UserError

ENCODER, DECODER = "encoder", "decoder"


@dataclass(frozen=True)
class Side:
    """Rows that are filled up to the longest."""

    ids: np.ndarray  # (rows, L) int32
    lengths: np.ndarray  # (rows,) places in use
    labels: np.ndarray | None = None  # (rows, L) int32 what each place should guess; -1: nothing
    positions: np.ndarray | None = None  # (rows, L) int64; None counts from 0
    source: np.ndarray | None = None  # (rows, L) int64 offset in the corpus of the token that stood here first, -1 for
    #                                   none; None: it is not known, and nothing beside the tokens can be read

    @classmethod
    def kept(cls, ids: np.ndarray, keep: np.ndarray, filling: int, source: np.ndarray | None = None) -> Side:
        """What is kept of each row moves together."""
        lengths = keep.sum(1)
        return cls(closed(ids, keep, filling).astype(np.int32), np.maximum(lengths, 1),
                   source=None if source is None else closed(source, keep, -1))

    def written(self, start: int, filling: int) -> Side:
        """This text as a decoder meets it: each place reads the token before, the first one `start`, and guesses its
        own (teacher forcing)."""
        used = np.arange(self.ids.shape[1]) < self.lengths[:, None]
        read = np.concatenate([np.full((len(self.ids), 1), start, dtype=np.int32), self.ids[:, :-1]], axis=1)
        return Side(np.where(used, read, filling).astype(np.int32), self.lengths, np.where(used, self.ids, -1))


@dataclass(frozen=True)
class Shown:
    """An encoder's rows as inputs look at them: what they read of a Draft, where there is one row of each."""

    corpus: Corpus
    ids: np.ndarray  # (rows, L) as the network reads them
    source: np.ndarray  # (rows, L) offset in the corpus; -1 at special tokens and padding

    @classmethod
    def of(cls, corpus: Corpus, side: Side) -> Shown:
        if side.source is None:
            raise UserError("an objective does not say where the tokens of its encoder's text are from (Side.source), "
                            "so that nothing beside them can be read; leave network.inputs out.")
        return cls(corpus, side.ids, side.source)

    @property
    def text(self) -> np.ndarray:
        return self.source >= 0

    @property
    def original(self) -> np.ndarray:
        """(rows, L) the tokens before any objective hid or replaced one."""
        found = self.ids.copy()
        found[self.text] = self.corpus.take("tokens", self.source[self.text])
        return found

    def field(self, name: str) -> np.ndarray:
        return field_at(self.corpus, name, self.source)


def field_at(corpus: Corpus, name: str, source: np.ndarray) -> np.ndarray:
    """(rows, length, size) float32: what a field has at these offsets; 0 where the offset is -1."""
    field, text = corpus.field(name), source >= 0
    values = np.zeros((*source.shape, field.size), np.float32)
    values[text] = field.at(source[text])
    return values


def closed(values: np.ndarray, keep: np.ndarray, filling: int) -> np.ndarray:
    """(rows, longest) the kept values of each row side by side, from its first place on."""
    lengths = keep.sum(1)
    made = np.full((len(values), max(1, int(lengths.max(initial=0)))), filling, dtype=values.dtype)
    made[np.arange(made.shape[1]) < lengths[:, None]] = values[keep]
    return made
