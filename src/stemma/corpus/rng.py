"""Randomness that comes in as an argument: uniform numbers, one row of them for each row of a batch.

A plain numpy generator serves where every step draws anew. Where masks are static, each row brings its own seed, so
that it gets the same numbers in whatever batch it comes.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np


class RNG(Protocol):
    def random(self, size: tuple[int, ...]) -> np.ndarray:
        """Uniform in [0, 1); the shape's first number is the count of rows."""


class PerRowRNG:
    def __init__(self, seeds: list[list[int]]):
        self._rows = [np.random.Generator(np.random.PCG64(seed)) for seed in seeds]

    def random(self, size: tuple[int, ...]) -> np.ndarray:
        return np.stack([row.random(size[1:]) for row in self._rows])
