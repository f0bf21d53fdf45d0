"""BERT's sentence pairs as the paper's appendix A.2 tells them, one sentence and one token at a time."""

from __future__ import annotations

import numpy as np


def pairs_of_document(bounds: list[int], capacity: int, rng: np.random.Generator) -> list[tuple[list[int], list[int]]]:
    """Sentences are gathered until the window is full; a random number of the first ones is A, the rest is B."""
    made = []
    chunk: list[list[int]] = []
    sentences = [list(range(start, stop)) for start, stop in zip(bounds[:-1], bounds[1:], strict=True)]
    for number, sentence in enumerate(sentences):
        chunk.append(sentence)
        if number == len(sentences) - 1 or sum(map(len, chunk)) >= capacity:
            middle = 1 if len(chunk) < 3 else int(rng.integers(1, len(chunk)))
            made.append(([token for part in chunk[:middle] for token in part],
                         [token for part in chunk[middle:] for token in part]))
            chunk = []
    return made


def truncated_lengths(for_a: int, for_b: int, capacity: int) -> tuple[int, int]:
    """Tokens leave the longer side one by one (B where both are level) until the pair fits."""
    while for_a + for_b > capacity:
        if for_a > for_b:
            for_a -= 1
        else:
            for_b -= 1
    return for_a, for_b
