"""A Bloom filter (1970): "was this number put in?" answered in a few bits per number, wrong only in one direction.

What was put in is always found; what was not is found with a probability that the filter's size decides. Here in
numpy: a whole array of numbers goes in, or is looked up, at once.
"""

from __future__ import annotations

import math

import numpy as np

from stemma.errors import UserError
from stemma.text.ngrams import mix_bits

MIN_RATE, MAX_RATE = 1e-12, 0.5  # below, collisions of the 64-bit numbers themselves (capacity / 2^64) would be felt


class BloomFilter:
    """Room for `capacity` numbers (uint64, well mixed) at a rate of false positives."""

    def __init__(self, capacity: int, rate: float):
        if not MIN_RATE <= rate <= MAX_RATE:
            raise UserError(f"a false-positive rate of {rate:g} is out of reach; choose one from {MIN_RATE:g} to {MAX_RATE}.")
        self.size = max(64, math.ceil(-capacity * math.log(rate) / math.log(2) ** 2))
        self.probes = max(1, round(-math.log2(rate)))
        self.bits = np.zeros(-(-self.size // 8), np.uint8)

    def add(self, numbers: np.ndarray) -> None:
        step = mix_bits(~numbers)
        for probe in range(self.probes):
            at = self._bit_indices(numbers, step, probe)
            np.bitwise_or.at(self.bits, at >> 3, np.uint8(1) << (at & 7).astype(np.uint8))

    def contains(self, numbers: np.ndarray) -> np.ndarray:
        """Whether each number was put in. About half of the strangers leave at each probe, so few are needed."""
        alive = np.arange(len(numbers))
        step = mix_bits(~numbers)
        for probe in range(self.probes):
            at = self._bit_indices(numbers[alive], step[alive], probe)
            alive = alive[(self.bits[at >> 3] >> (at & 7).astype(np.uint8) & 1).astype(bool)]
        found = np.zeros(len(numbers), bool)
        found[alive] = True
        return found

    def _bit_indices(self, numbers: np.ndarray, step: np.ndarray, probe: int) -> np.ndarray:
        # Double hashing, scrambled once more: start + probe * step modulo the size alone knows only size^2 patterns,
        # and with few numbers inside (size 38,000) that many strangers share all their places with one of them.
        here = numbers + np.uint64(probe) * step
        here = (here ^ (here >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        here ^= here >> np.uint64(32)
        return (here % np.uint64(self.size)).astype(np.int64)

    @property
    def fill_ratio(self) -> float:
        """The share of bits that are set."""
        return int(np.bitwise_count(self.bits).sum(dtype=np.int64)) / self.size

    @property
    def implied_rate(self) -> float:
        """The false-positive rate that the fill implies: all probes must meet a set bit."""
        return self.fill_ratio**self.probes
