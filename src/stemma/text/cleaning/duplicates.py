"""Documents that say nearly the same: MinHash (Broder 1997) turns the share of common five-word runs into the share of
equal numbers, and banding finds the pairs worth comparing without comparing all.

One byte of each of 128 minima is kept (b-bit minwise hashing, Li and Koenig 2010) and one number a band: about 300
bytes a document, whatever its length, and no text. datatrove has the same method in four stages through files, for
clusters; a single machine needs one sort a band.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from stemma.text.ngrams import mix_bits, ngram_hashes, normalized_words, word_hashes

SHINGLE_WORDS = 5  # words
NUM_HASHES = 128
CHUNK = 2048  # runs hashed in one go, so that the table stays in the cache
BAND_RECALL = 0.99  # a pair exactly at the threshold becomes a candidate with this probability
_random = np.random.default_rng(20)
FACTORS = _random.integers(0, 2**64, NUM_HASHES, dtype=np.uint64) | np.uint64(1)
OFFSETS = _random.integers(0, 2**64, NUM_HASHES, dtype=np.uint64)


class HashCounts:
    """Which texts came before, by 64 bits of their hash."""

    def __init__(self) -> None:
        self._times: dict[int, int] = {}

    def times(self, text: str) -> int:
        """How often this text came before."""
        return self._times.get(_key(text), 0)

    def add(self, text: str) -> None:
        key = _key(text)
        self._times[key] = self._times.get(key, 0) + 1


def _key(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def band_rows(threshold: float) -> int:
    """Minima in a band: as many as still let a pair at the threshold meet in some band almost surely."""
    for rows in range(NUM_HASHES // 2, 1, -1):
        if 1 - (1 - threshold**rows) ** (NUM_HASHES // rows) >= BAND_RECALL:
            return rows
    return 1


class NearDuplicates:
    """Takes documents one by one; at the end says which resemble an earlier one."""

    def __init__(self, threshold: float):
        self.threshold = threshold
        self.rows = band_rows(threshold)
        self.bands = NUM_HASHES // self.rows
        self._low = bytearray()
        self._keys = bytearray()

    def add(self, text: str) -> None:
        minima = signature(text)
        self._low += minima.astype(np.uint8).tobytes()
        banded = minima[: self.bands * self.rows].reshape(self.bands, self.rows)
        self._keys += (banded @ FACTORS[: self.rows]).tobytes()  # modulo 2^64: a number for each band

    def duplicate_of(self) -> np.ndarray:
        """(documents,) the earlier document that each one resembles, or -1. Chains count: what resembles a document
        that resembles another goes as well."""
        low = np.frombuffer(self._low, np.uint8).reshape(-1, NUM_HASHES)
        keys = np.frombuffer(self._keys, np.uint64).reshape(-1, self.bands)
        parent = np.full(len(low), -1, np.int64)
        for band in range(self.bands):
            order = np.argsort(keys[:, band], kind="stable")  # within equal keys documents stay in their order
            ranked = keys[order, band]
            starts = np.concatenate([[True], ranked[1:] != ranked[:-1]])
            head = order[np.flatnonzero(starts)[np.cumsum(starts) - 1]]
            before = np.concatenate([order[:1], order[:-1]])
            for other in (head, before):  # the first of those that met, and the neighbour, should the first be a stray
                later = ~starts & (parent[order] < 0)
                pairs = order[later], other[later]
                alike = np.concatenate([self._similarity(low, pairs[0][at : at + 65_536], pairs[1][at : at + 65_536])
                                        for at in range(0, max(1, len(pairs[0])), 65_536)])
                parent[pairs[0][alike]] = pairs[1][alike]
        return parent

    def _similarity(self, low: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        equal: NDArray[np.float64] = (low[one] == low[other]).mean(axis=1)
        by_chance = 1 / 256  # one byte agrees that often by itself
        return (equal - by_chance) / (1 - by_chance) >= self.threshold


def signature(text: str) -> np.ndarray:
    """(128,) uint64 minima over the text's runs of five words; a shorter text is one run."""
    hashes = word_hashes(normalized_words(text))
    runs = ngram_hashes(hashes, min(SHINGLE_WORDS, max(1, len(hashes))))
    minima = np.full(NUM_HASHES, np.iinfo(np.uint64).max)
    for at in range(0, len(runs), CHUNK):
        table = runs[at : at + CHUNK, None] * FACTORS + OFFSETS  # (runs, 128), modulo 2^64
        np.minimum(minima, table.min(axis=0), out=minima)
    return mix_bits(minima)  # minima are small numbers; now any byte of them will do
