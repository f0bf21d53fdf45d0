"""A vocabulary size for an amount of text.

A vocabulary published for 16 GB of text wastes most of a small model's arithmetic on a few megabytes: rare pieces are
seen a handful of times, and every prediction computes all of them. The best size grows slowly with the amount of text,
about as the number of distinct words does (Heaps' law): here as the square root, 8,192 pieces for 10 MB.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

PIECES_PER_ROOT_BYTE = 2.5  # 8,192 for 10 MB
MIN_SIZE = 1024
COVERAGE = 0.9995  # fraction of the characters that must be pieces of their own
FITTED_KINDS = ("wordpiece", "bpe", "byte_bpe", "unigram")  # words and characters are as many as the text has


def vocab_size_for_text(texts: Iterable[str], kind: str, max_size: int) -> int:
    """A power of two by the number of bytes, at least twice the characters that cover the text, at most `max_size`.

    Reads only as much text as is needed to reach `max_size`.
    """
    if kind not in FITTED_KINDS:
        return max_size
    num_bytes, counts = 0, Counter[str]()
    for text in texts:
        num_bytes += len(text.encode("utf-8", "surrogatepass"))
        if kind != "byte_bpe":
            counts.update(text)
        if _size_for_bytes(num_bytes) >= max_size:
            return max_size
    return min(max_size, max(_size_for_bytes(num_bytes), 2 * _covering_characters(counts)))


def _size_for_bytes(num_bytes: int) -> int:
    return max(MIN_SIZE, 1 << round(math.log2(max(1.0, PIECES_PER_ROOT_BYTE * math.sqrt(num_bytes)))))


def _covering_characters(counts: Counter[str]) -> int:
    """How many of the most frequent characters cover the text; half of a vocabulary may be characters."""
    needed, covered = COVERAGE * counts.total(), 0
    for number, (_, count) in enumerate(counts.most_common(), 1):
        covered += count
        if covered >= needed:
            return number
    return len(counts)
