"""Words and runs of n words as 64-bit numbers, so that texts are compared by arithmetic instead of by strings.

A word is a run of lower-case letters and digits, as in GPT-2's overlap study (Radford et al. 2019, section 4); Chinese
and Japanese write no spaces, so each of their characters is a word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from stemma.text.sentences import WIDE

WORD = re.compile(rf"[{WIDE}]|[^\W_{WIDE}]+")
BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no bit of an earlier word is lost when it is multiplied
BATCH = 1 << 16  # words hashed in one go: enough to hide numpy's overhead, few enough for the cache
VOCABULARY = 1 << 20  # words whose hashes are remembered


class _Hashes(dict[str, int]):
    """Each word's number, computed once. Python's own hash differs from run to run, and results must not."""

    def __missing__(self, word: str) -> int:
        if len(self) >= VOCABULARY:
            self.clear()
        number = self[word] = int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")
        return number


_hashes = _Hashes()


def normalized_words(text: str) -> list[str]:
    """The text's words: lower case, without punctuation; full-width letters and digits count as plain ones."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return WORD.findall(text.lower())


def word_hashes(found: list[str]) -> NDArray[np.uint64]:
    """(W,) uint64: a number for each word, the same on every machine."""
    return np.fromiter(map(_hashes.__getitem__, found), np.uint64, len(found))


def ngram_hashes(hashes: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
    """(W,) word hashes -> (W - n + 1,) uint64: a number for each run of n words; none if there are fewer."""
    count = max(0, len(hashes) - n + 1)
    total = hashes[:count].copy()
    for place in range(1, n if count else 1):  # n steps over whole arrays: a polynomial in BASE, modulo 2^64
        total *= BASE
        total += hashes[place : place + count]
    return mix_bits(total)


def mix_bits(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread every bit over all 64 (the last steps of splitmix64): sums and products alone leave the low bits weak."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def ngram_batches(texts: Iterable[tuple[int, str]], n: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(hashes, document of each) of every run of n words within a document; a document may come in several texts."""
    parts: list[np.ndarray] = []
    owners: list[int] = []
    waiting = 0
    tail = (np.zeros(0, np.uint64), np.zeros(0, np.int64))  # a run may begin in one batch and end in the next
    for owner, text in texts:
        hashes = word_hashes(normalized_words(text))
        parts.append(hashes)
        owners.append(owner)
        waiting += len(hashes)
        if waiting >= BATCH:
            tail, found = _within(tail, parts, owners, n)
            yield found
            parts, owners, waiting = [], [], 0
    if parts:
        yield _within(tail, parts, owners, n)[1]


def _within(
    tail: tuple[np.ndarray, np.ndarray], parts: list[np.ndarray], owners: list[int], n: int
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    hashes = np.concatenate([tail[0], *parts])
    owner = np.concatenate([tail[1], np.repeat(np.array(owners, np.int64), [len(part) for part in parts])])
    count = max(0, len(hashes) - n + 1)
    inside = owner[:count] == owner[len(owner) - count :]  # first and last word are of one document
    return (hashes[count:], owner[count:]), (ngram_hashes(hashes, n)[inside], owner[:count][inside])
