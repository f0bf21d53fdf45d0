"""A Bloom filter (1970): approximate set membership with a few bits per element, and no false negatives.

The size of the filter determines the false-positive rate. Vectorised with numpy: a whole array of hashes is added or
looked up at once.
"""

from __future__ import annotations

import math

import numpy as np

from stemma.errors import UserError
from stemma.text.ngrams import mix_bits

MIN_RATE, MAX_RATE = 1e-12, 0.5  # below this, collisions of the 64-bit hashes (capacity / 2^64) are not negligible


class BloomFilter:
    """A filter for `capacity` hashes (uint64, well mixed) with the false-positive rate `rate`."""

    def __init__(self, capacity: int, rate: float):
        if not MIN_RATE <= rate <= MAX_RATE:
            raise UserError(f"a false-positive rate of {rate:g} is out of reach; choose one from {MIN_RATE:g} to "
                            f"{MAX_RATE}.")
        self.size = max(64, math.ceil(-capacity * math.log(rate) / math.log(2) ** 2))
        self.probes = max(1, round(-math.log2(rate)))
        self.bits = np.zeros(-(-self.size // 8), np.uint8)

    def add(self, hashes: np.ndarray) -> None:
        step = mix_bits(~hashes)
        for probe in range(self.probes):
            bit_index = self._bit_indices(hashes, step, probe)
            np.bitwise_or.at(self.bits, bit_index >> 3, np.uint8(1) << (bit_index & 7).astype(np.uint8))

    def contains(self, hashes: np.ndarray) -> np.ndarray:
        """Whether the filter has each hash. Each probe eliminates about half of the non-members."""
        alive = np.arange(len(hashes))
        step = mix_bits(~hashes)
        for probe in range(self.probes):
            bit_index = self._bit_indices(hashes[alive], step[alive], probe)
            alive = alive[(self.bits[bit_index >> 3] >> (bit_index & 7).astype(np.uint8) & 1).astype(bool)]
        result = np.zeros(len(hashes), bool)
        result[alive] = True
        return result

    def _bit_indices(self, hashes: np.ndarray, step: np.ndarray, probe: int) -> np.ndarray:
        # Double hashing with one more mixing step. Plain start + probe * step modulo the size has only size^2 patterns;
        # in a small filter (38,000 bits) too many non-members then share all bits with a member.
        mixed = hashes + np.uint64(probe) * step
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        mixed ^= mixed >> np.uint64(32)
        return (mixed % np.uint64(self.size)).astype(np.int64)

    @property
    def fill_ratio(self) -> float:
        """Fraction of bits that are set."""
        return int(np.bitwise_count(self.bits).sum(dtype=np.int64)) / self.size

    @property
    def implied_rate(self) -> float:
        """False-positive rate implied by the fill ratio: all probes must hit a set bit."""
        return self.fill_ratio**self.probes
