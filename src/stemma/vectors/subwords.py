"""Character n-grams of words, hashed into buckets as fastText does (arXiv:1607.04606, section 3.2).

A word is written as `<word>`; its n-grams of `min_n` to `max_n` characters are hashed with FNV-1a. fastText adds each
byte as a *signed* char, so bytes of 128 and more change the upper bits of the hash too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
OFFSET_BASIS, PRIME = np.uint32(2_166_136_261), np.uint32(16_777_619)
END_OF_SENTENCE = "</s>"  # fastText's word for the end of a line: it has no n-grams
WORDS_AT_ONCE = 50_000


@dataclass(frozen=True)
class Subwords:
    """Vectors of the buckets, (buckets, width), and which n-grams have one."""

    matrix: NDArray[np.float32]
    min_n: int
    max_n: int

    def compose(self, words: Sequence[str], own: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """The mean of the vectors of the n-grams of each word; with `own` (words, width), of the word itself too. A
        word without n-grams and without an own vector gets 0."""
        result = np.zeros((len(words), self.matrix.shape[1]), np.float32)
        for start in range(0, len(words), WORDS_AT_ONCE):
            stop = min(len(words), start + WORDS_AT_ONCE)
            word, bucket = ngram_buckets(words[start:stop], self.min_n, self.max_n, len(self.matrix))
            counts = np.bincount(word, minlength=stop - start)
            sums = np.zeros((stop - start, self.matrix.shape[1]), np.float32) if own is None else \
                np.array(own[start:stop], np.float32)
            present = np.flatnonzero(counts)
            if len(present):
                firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])[present]
                sums[present] += np.add.reduceat(self.matrix[bucket], firsts, axis=0)
            result[start:stop] = sums / np.maximum(1, counts + (own is not None))[:, None]
        return result


def ngram_buckets(words: Sequence[str], min_n: int, max_n: int, buckets: int) -> tuple[Integers, Integers]:
    """(index of the word, bucket) of all n-grams, in fastText's order: by word, first character, and length."""
    nothing = np.zeros(0, np.int64)
    if not words or max_n < 1 or buckets < 1:
        return nothing, nothing
    encoded = [b"" if word == END_OF_SENTENCE else b"<%s>" % word.encode("utf-8", "surrogatepass") for word in words]
    text = np.frombuffer(b"".join(encoded), np.uint8)
    if not len(text):
        return nothing, nothing
    word_of_byte = np.repeat(np.arange(len(words)), [len(piece) for piece in encoded])
    first_byte = np.flatnonzero((text & 0xC0) != 0x80)  # of each character
    word_of_char = word_of_byte[first_byte]
    last_char = np.searchsorted(word_of_char, word_of_char, side="right")  # the end of the word of each character
    first_char = np.searchsorted(word_of_char, word_of_char, side="left")
    ends = np.append(first_byte, len(text))
    characters = np.arange(len(first_byte))
    found = []
    for n in range(max(1, min_n), max_n + 1):
        starts = characters[characters + n <= last_char]
        if n == 1:  # < and > alone are no n-grams
            starts = starts[(starts > first_char[starts]) & (starts + 1 < last_char[starts])]
        hashes = _fnv1a(text, first_byte[starts], ends[starts + n])
        found.append(np.stack([word_of_char[starts], starts, np.full(len(starts), n),
                               hashes.astype(np.int64) % buckets]))
    if not found:
        return nothing, nothing
    word, start, length, bucket = np.concatenate(found, axis=1)
    order = np.lexsort((length, start))
    return word[order], bucket[order]


def _fnv1a(text: NDArray[np.uint8], starts: Integers, stops: Integers) -> NDArray[np.uint32]:
    """The hash of text[start:stop] for each pair."""
    hashes = np.full(len(starts), OFFSET_BASIS, np.uint32)
    lengths = stops - starts
    signed = text.view(np.int8).astype(np.int32).view(np.uint32)  # fastText casts each byte to a signed char
    for offset in range(int(lengths.max(initial=0))):
        active = np.flatnonzero(lengths > offset)
        hashes[active] = (hashes[active] ^ signed[starts[active] + offset]) * PRIME  # modulo 2^32, as in C++
    return hashes
