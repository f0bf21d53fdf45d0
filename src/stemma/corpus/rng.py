"""Random number generators for batches: one row of uniform samples for each row of the batch.

Dynamic masking uses a plain numpy generator. With static masking each row has its own seed, so its samples do not
depend on the batch it is in.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np


class RNG(Protocol):
    def random(self, size: tuple[int, ...]) -> np.ndarray:
        """Uniform samples in [0, 1); `size[0]` is the number of rows."""


class PerRowRNG:
    def __init__(self, seeds: list[list[int]]):
        self._rows = [np.random.Generator(np.random.PCG64(seed)) for seed in seeds]

    def random(self, size: tuple[int, ...]) -> np.ndarray:
        return np.stack([row.random(size[1:]) for row in self._rows])
