"""64-bit hashes of words and word n-grams, to compare texts without comparing strings.

A word is a run of lower-case letters and digits, as in GPT-2's overlap study (Radford et al. 2019, section 4). Chinese
and Japanese have no spaces, so each of their characters is a word.
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
BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplication loses no bits
BATCH = 1 << 16  # words hashed at a time: enough to amortize numpy's overhead, few enough for the CPU cache
VOCABULARY = 1 << 20  # words whose hashes are cached


class _Hashes(dict[str, int]):
    """Cache of word hashes. Python's own hash changes from run to run."""

    def __missing__(self, word: str) -> int:
        if len(self) >= VOCABULARY:
            self.clear()
        value = self[word] = int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")
        return value


_hashes = _Hashes()


def normalized_words(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation; full-width letters and digits become plain ones."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return WORD.findall(text.lower())


def word_hashes(words: list[str]) -> NDArray[np.uint64]:
    """(W,) uint64 hash of each word, the same on every machine."""
    return np.fromiter(map(_hashes.__getitem__, words), np.uint64, len(words))


def ngram_hashes(hashes: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
    """(W,) word hashes -> (W - n + 1,) uint64 hashes of the n-grams; empty if there are fewer than n words."""
    count = max(0, len(hashes) - n + 1)
    total = hashes[:count].copy()
    for offset in range(1, n if count else 1):  # a polynomial in BASE, modulo 2^64
        total *= BASE
        total += hashes[offset : offset + count]
    return mix_bits(total)


def mix_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix all 64 bits (the final steps of splitmix64): after sums and products alone the low bits are weak."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def ngram_batches(texts: Iterable[tuple[int, str]], n: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(hashes, document of each) of all n-grams within a document; consecutive texts may belong to one document."""
    parts: list[np.ndarray] = []
    document_indices: list[int] = []
    num_words = 0
    tail = (np.zeros(0, np.uint64), np.zeros(0, np.int64))  # an n-gram may begin in one batch and end in the next
    for document_index, text in texts:
        hashes = word_hashes(normalized_words(text))
        parts.append(hashes)
        document_indices.append(document_index)
        num_words += len(hashes)
        if num_words >= BATCH:
            tail, batch = _ngrams_within_documents(tail, parts, document_indices, n)
            yield batch
            parts, document_indices, num_words = [], [], 0
    if parts:
        yield _ngrams_within_documents(tail, parts, document_indices, n)[1]


def _ngrams_within_documents(
    tail: tuple[np.ndarray, np.ndarray], parts: list[np.ndarray], document_indices: list[int], n: int
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    hashes = np.concatenate([tail[0], *parts])
    part_documents = np.repeat(np.array(document_indices, np.int64), [len(part) for part in parts])
    word_documents = np.concatenate([tail[1], part_documents])
    count = max(0, len(hashes) - n + 1)
    first, last = word_documents[:count], word_documents[len(word_documents) - count :]
    inside = first == last  # the first and the last word belong to one document
    return (hashes[count:], word_documents[count:]), (ngram_hashes(hashes, n)[inside], word_documents[:count][inside])
