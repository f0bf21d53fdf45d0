"""Normalised pointwise mutual information (NPMI, Bouma 2009): ln(p(xy) / p(x)p(y)) / -ln p(xy). It is 1 if x and y only
occur together, 0 if they are independent, and unlike plain PMI it does not favour rare pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_KEYS = 4_000_000  # distinct keys of a table; beyond it the rarest are dropped
NO_KEYS = np.zeros(0, np.uint64)


def npmi(joint: np.ndarray, left: np.ndarray, right: np.ndarray, total: int) -> np.ndarray:
    """NPMI from the joint count, the two single counts and the total number of words."""
    joint, left, right = (np.maximum(counts, 1e-9) for counts in (joint, left, right))
    maximum: NDArray[np.float64] = np.maximum(-np.log(joint / total), 1e-9)  # 0 if the whole text is one phrase
    pmi: NDArray[np.float64] = np.log(joint) + np.log(total) - np.log(left) - np.log(right)
    return pmi.clip(-maximum, maximum) / maximum


class CountTable:
    """Counts by 64-bit key, with extra columns from the first occurrence of each key. The keys are sorted, so blocks
    are counted and looked up with vector operations. When the table overflows, the rarest keys are dropped, as in
    word2phrase; the threshold for that only rises."""

    def __init__(self, columns: int = 0, max_keys: int = MAX_KEYS):
        self.keys, self.counts = NO_KEYS, np.zeros(0, np.int64)
        self.columns = np.zeros((0, columns), np.uint64)
        self.max_keys, self._min_count = max_keys, 1

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, keys: np.ndarray, columns: np.ndarray | None = None) -> None:
        unique, first, counts = np.unique(keys, return_index=True, return_counts=True)
        index = np.searchsorted(self.keys, unique)
        exists = np.zeros(len(unique), bool)
        inside = index < len(self.keys)
        exists[inside] = self.keys[index[inside]] == unique[inside]
        self.counts[index[exists]] += counts[exists]
        new_columns = np.zeros((len(unique), 0), np.uint64) if columns is None else columns[first]
        self.keys = np.insert(self.keys, index[~exists], unique[~exists])
        self.counts = np.insert(self.counts, index[~exists], counts[~exists])
        self.columns = np.insert(self.columns, index[~exists], new_columns[~exists], axis=0)
        while len(self) > self.max_keys:
            self._min_count += 1
            self.keep(self.counts >= self._min_count)

    def keep(self, mask: np.ndarray) -> None:
        """Drop the keys for which the mask is False."""
        self.keys, self.counts, self.columns = self.keys[mask], self.counts[mask], self.columns[mask]

    def counts_for(self, keys: np.ndarray) -> np.ndarray:
        """Count of each key; 0 for a key that is not in the table."""
        if not len(self):
            return np.zeros(len(keys), np.int64)
        index = np.minimum(np.searchsorted(self.keys, keys), len(self) - 1)
        return np.where(self.keys[index] == keys, self.counts[index], 0)
