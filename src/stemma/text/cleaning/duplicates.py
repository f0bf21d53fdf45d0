"""Near-duplicate detection: MinHash (Broder 1997) over 5-grams of words, with banding (LSH) to find candidate pairs.

Stores one byte of each of 128 minima (b-bit minwise hashing, Li and Koenig 2010) and one hash per band: about 300 bytes
per document of any length, and no text. datatrove has the same method in four stages through files, for clusters; on a
single machine one sort per band is enough.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from stemma.text.ngrams import mix_bits, ngram_hashes, normalized_words, word_hashes

SHINGLE_WORDS = 5
NUM_HASHES = 128
CHUNK = 2048  # n-grams hashed at a time, so that the table stays in the CPU cache
BAND_RECALL = 0.99  # probability that a pair exactly at the threshold becomes a candidate
_random = np.random.default_rng(20)
FACTORS = _random.integers(0, 2**64, NUM_HASHES, dtype=np.uint64) | np.uint64(1)
OFFSETS = _random.integers(0, 2**64, NUM_HASHES, dtype=np.uint64)


class HashCounts:
    """Counts of texts, by a 64-bit hash."""

    def __init__(self) -> None:
        self._times: dict[int, int] = {}

    def times(self, text: str) -> int:
        """How often this text was added."""
        return self._times.get(_key(text), 0)

    def add(self, text: str) -> None:
        key = _key(text)
        self._times[key] = self._times.get(key, 0) + 1


def _key(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def band_rows(threshold: float) -> int:
    """Minima per band: the most for which a pair at the threshold shares a band with probability BAND_RECALL."""
    for rows in range(NUM_HASHES // 2, 1, -1):
        if 1 - (1 - threshold**rows) ** (NUM_HASHES // rows) >= BAND_RECALL:
            return rows
    return 1


class NearDuplicates:
    """Collects MinHash signatures; `duplicate_of` then finds the near-duplicates."""

    def __init__(self, threshold: float):
        self.threshold = threshold
        self.rows = band_rows(threshold)
        self.bands = NUM_HASHES // self.rows
        self._low_bytes = bytearray()  # the lowest byte of each minimum
        self._keys = bytearray()  # a hash of each band

    def add(self, text: str) -> None:
        minima = signature(text)
        self._low_bytes += minima.astype(np.uint8).tobytes()
        banded = minima[: self.bands * self.rows].reshape(self.bands, self.rows)
        self._keys += (banded @ FACTORS[: self.rows]).tobytes()  # modulo 2^64: a hash per band

    def duplicate_of(self) -> np.ndarray:
        """(documents,) index of an earlier near-duplicate, or -1. Chains count: the earlier document may itself be a
        near-duplicate."""
        low = np.frombuffer(self._low_bytes, np.uint8).reshape(-1, NUM_HASHES)
        keys = np.frombuffer(self._keys, np.uint64).reshape(-1, self.bands)
        parent = np.full(len(low), -1, np.int64)
        for band in range(self.bands):
            order = np.argsort(keys[:, band], kind="stable")  # documents with equal keys stay in order
            ranked = keys[order, band]
            starts = np.concatenate([[True], ranked[1:] != ranked[:-1]])
            first = order[np.flatnonzero(starts)[np.cumsum(starts) - 1]]
            previous = np.concatenate([order[:1], order[:-1]])
            for other in (first, previous):  # the first document of the bucket, and the previous one
                later = ~starts & (parent[order] < 0)
                pairs = order[later], other[later]
                blocks = (slice(start, start + 65_536) for start in range(0, max(1, len(pairs[0])), 65_536))
                similar = np.concatenate([self._similarity(low, pairs[0][block], pairs[1][block]) for block in blocks])
                parent[pairs[0][similar]] = pairs[1][similar]
        return parent

    def _similarity(self, low: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        equal: NDArray[np.float64] = (low[first] == low[second]).mean(axis=1)
        by_chance = 1 / 256  # probability that two random bytes are equal
        return (equal - by_chance) / (1 - by_chance) >= self.threshold


def signature(text: str) -> np.ndarray:
    """(128,) uint64 minima over the text's 5-grams; a shorter text is one n-gram."""
    hashes = word_hashes(normalized_words(text))
    ngrams = ngram_hashes(hashes, min(SHINGLE_WORDS, max(1, len(hashes))))
    minima = np.full(NUM_HASHES, np.iinfo(np.uint64).max)
    for first in range(0, len(ngrams), CHUNK):
        table = ngrams[first : first + CHUNK, None] * FACTORS + OFFSETS  # (n-grams, 128), modulo 2^64
        np.minimum(minima, table.min(axis=0), out=minima)
    return mix_bits(minima)  # minima are small numbers; after mixing, any byte of them can be used
