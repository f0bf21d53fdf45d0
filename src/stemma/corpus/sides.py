"""The two texts of an encoder-decoder's example, each in rows of its own: what is read, and what is written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ENCODER, DECODER = "encoder", "decoder"


@dataclass(frozen=True)
class Side:
    """Rows that are filled up to the longest."""

    ids: np.ndarray  # (rows, L) int32
    lengths: np.ndarray  # (rows,) places in use
    labels: np.ndarray | None = None  # (rows, L) int32 what each place should guess; -1: nothing
    positions: np.ndarray | None = None  # (rows, L) int64; None counts from 0

    @classmethod
    def kept(cls, ids: np.ndarray, keep: np.ndarray, filling: int) -> Side:
        """What is kept of each row moves together."""
        lengths = keep.sum(1)
        return cls(closed(ids, keep, filling).astype(np.int32), np.maximum(lengths, 1))

    def written(self, start: int, filling: int) -> Side:
        """This text as a decoder meets it: each place reads the token before, the first one `start`, and guesses its
        own (teacher forcing)."""
        used = np.arange(self.ids.shape[1]) < self.lengths[:, None]
        read = np.concatenate([np.full((len(self.ids), 1), start, dtype=np.int32), self.ids[:, :-1]], axis=1)
        return Side(np.where(used, read, filling).astype(np.int32), self.lengths, np.where(used, self.ids, -1))


def closed(values: np.ndarray, keep: np.ndarray, filling: int) -> np.ndarray:
    """(rows, longest) the kept values of each row side by side, from its first place on."""
    lengths = keep.sum(1)
    made = np.full((len(values), max(1, int(lengths.max(initial=0)))), filling, dtype=values.dtype)
    made[np.arange(made.shape[1]) < lengths[:, None]] = values[keep]
    return made
