"""BERT's sentence pairs as in the paper's appendix A.2, sentence by sentence and token by token."""

from __future__ import annotations

import numpy as np


def pairs_of_document(bounds: list[int], capacity: int, rng: np.random.Generator) -> list[tuple[list[int], list[int]]]:
    """Sentences are collected until the window is full; a random number of the first ones is A, the others are B."""
    pairs = []
    chunk: list[list[int]] = []
    sentences = [list(range(start, stop)) for start, stop in zip(bounds[:-1], bounds[1:], strict=True)]
    for index, sentence in enumerate(sentences):
        chunk.append(sentence)
        if index == len(sentences) - 1 or sum(map(len, chunk)) >= capacity:
            middle = 1 if len(chunk) < 3 else int(rng.integers(1, len(chunk)))
            pairs.append(([token for part in chunk[:middle] for token in part],
                          [token for part in chunk[middle:] for token in part]))
            chunk = []
    return pairs


def truncated_lengths(for_a: int, for_b: int, capacity: int) -> tuple[int, int]:
    """Tokens are removed one by one from the longer side (from B if both are equal) until the pair fits."""
    while for_a + for_b > capacity:
        if for_a > for_b:
            for_a -= 1
        else:
            for_b -= 1
    return for_a, for_b
