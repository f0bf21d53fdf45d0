"""Words that belong together are found beside each other more often than chance would have it: normalised pointwise
mutual information (Bouma 2009), ln(p(xy) / p(x)p(y)) / -ln p(xy), which is 1 where neither occurs without the other, 0
where they meet by chance, and does not prefer rare pairs as the plain one does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_KEYS = 4_000_000  # distinct keys that a table holds; beyond it the rarest are forgotten
NO_KEYS = np.zeros(0, np.uint64)


def npmi(joint: np.ndarray, left: np.ndarray, right: np.ndarray, total: int) -> np.ndarray:
    """How much two things belong together, by the counts of both, of each, and of all words."""
    joint, left, right = (np.maximum(counts, 1e-9) for counts in (joint, left, right))
    certain: NDArray[np.float64] = np.maximum(-np.log(joint / total), 1e-9)  # of a text that is one phrase
    found: NDArray[np.float64] = np.log(joint) + np.log(total) - np.log(left) - np.log(right)
    return found.clip(-certain, certain) / certain


class CountTable:
    """Counts by 64-bit key, with some columns of whatever was said of a key when it was first met. It stays sorted, so
    that whole blocks are counted and looked up at once, and small: when it overflows, keys met too rarely are
    forgotten, as in word2phrase; the threshold for that only rises."""

    def __init__(self, columns: int = 0, max_keys: int = MAX_KEYS):
        self.keys, self.counts = NO_KEYS, np.zeros(0, np.int64)
        self.columns = np.zeros((0, columns), np.uint64)
        self.max_keys, self._floor = max_keys, 1

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, keys: np.ndarray, columns: np.ndarray | None = None) -> None:
        found, first, counts = np.unique(keys, return_index=True, return_counts=True)
        at = np.searchsorted(self.keys, found)
        known = np.zeros(len(found), bool)
        inside = at < len(self.keys)
        known[inside] = self.keys[at[inside]] == found[inside]
        self.counts[at[known]] += counts[known]
        said = np.zeros((len(found), 0), np.uint64) if columns is None else columns[first]
        self.keys = np.insert(self.keys, at[~known], found[~known])
        self.counts = np.insert(self.counts, at[~known], counts[~known])
        self.columns = np.insert(self.columns, at[~known], said[~known], axis=0)
        while len(self) > self.max_keys:
            self._floor += 1
            self.keep(self.counts >= self._floor)

    def keep(self, keys: np.ndarray) -> None:
        """Forget the other keys."""
        self.keys, self.counts, self.columns = self.keys[keys], self.counts[keys], self.columns[keys]

    def counts_for(self, keys: np.ndarray) -> np.ndarray:
        """How often each of these was met; 0 for one that is not here."""
        if not len(self):
            return np.zeros(len(keys), np.int64)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self) - 1)
        return np.where(self.keys[at] == keys, self.counts[at], 0)
