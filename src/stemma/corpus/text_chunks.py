"""Text of a corpus in chunks of code points, to count and match words, phrases and lexicon entries by their spelling,
independent of the tokenization.

Letters are lower-cased if the tokenizer does so, and each run of white space is one space. A chunk is divided into
atoms: words, or single Chinese characters where a unit may begin and end at any character. Every span of characters has
a 64-bit hash in constant time: the difference of two prefix hashes (modulo 2^64, where every odd base has an inverse).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from stemma.corpus.corpus import Corpus

CHUNK_TOKENS = 1 << 18  # tokens processed at a time
NUM_CODE_POINTS = 0x110000
SPACE = ord(" ")
DOCUMENT_SEPARATOR = "\0"  # between two documents; no text contains it
HASH_BASE = 0x9E3779B97F4A7C15  # any large odd number
CJK_POINTS = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))


@dataclass(frozen=True)
class TextChunk:
    """Consecutive tokens and their text as code points. Token indices are relative to the chunk's first token."""

    first_token: int  # index in the corpus
    num_tokens: int
    characters: np.ndarray  # (C,) uint32
    atom_starts: np.ndarray  # (A,) first character of each atom, ascending
    atom_ends: np.ndarray  # (A,) end (exclusive) of each atom
    atom_first_tokens: np.ndarray  # (A + 1,) first token of each atom, and the end
    next_in_sentence: np.ndarray  # (A,) bool: the next atom belongs to the same sentence
    has_alphanumeric: np.ndarray  # (A,) bool: the atom has a letter or a digit
    prefix_hashes: NDArray[np.uint64]  # (C + 1,)

    def hashes(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
        """(N,) hashes, equal for equal character spans."""
        _, inverse = _powers(len(self.characters))
        return (self.prefix_hashes[ends] - self.prefix_hashes[starts]) * inverse[starts]


def iter_text_chunks(corpus: Corpus, characters: bool = False) -> Iterator[TextChunk]:
    """The whole corpus, in order. Atoms are words, or with `characters` single Chinese characters."""
    ranges: list[tuple[int, int, str, int]] = []
    for text_range in _text_ranges(corpus):
        if ranges and text_range[1] - ranges[0][0] > CHUNK_TOKENS:
            yield _build_chunk(corpus, ranges, characters)
            ranges = []
        ranges.append(text_range)
    if ranges:
        yield _build_chunk(corpus, ranges, characters)


def normalize_characters(text: str, lowercase: bool) -> np.ndarray:
    """(C,) code points of a text, normalized like those of a chunk."""
    points = np.frombuffer(" ".join(text.split()).encode("utf-32-le"), np.uint32)
    return _lower()[points] if lowercase else points


def hash_characters(characters: np.ndarray) -> int:
    """The hash of these characters, equal to `TextChunk.hashes`."""
    powers, _ = _powers(len(characters))
    return int(((characters.astype(np.uint64) + np.uint64(1)) * powers[:len(characters)]).sum(dtype=np.uint64))


def _text_ranges(corpus: Corpus) -> Iterator[tuple[int, int, str, int]]:
    """(first token, end, text, text offset in the document) of each document; long documents are cut at sentences."""
    for document in range(len(corpus.document_starts) - 1):
        start, stop = (int(bound) for bound in corpus.document_starts[document:document + 2])
        text = corpus.document_text(document)
        while start < stop:
            cut = stop
            if stop - start > CHUNK_TOKENS:
                cut = int(corpus.sentence_starts[np.searchsorted(corpus.sentence_starts, start + CHUNK_TOKENS,
                                                                 "right") - 1])
                cut = cut if cut > start else start + CHUNK_TOKENS
            edges = [int(corpus.values_between("starts", token, token + 1)[0]) if token < stop else len(text)
                     for token in (start, cut)]
            yield start, cut, text[edges[0]:edges[1]], edges[0]
            start = cut


def _build_chunk(corpus: Corpus, ranges: list[tuple[int, int, str, int]], characters: bool) -> TextChunk:
    first, stop = ranges[0][0], ranges[-1][1]
    texts = [text for _, _, text, _ in ranges]
    points = np.frombuffer(DOCUMENT_SEPARATOR.join(texts).encode("utf-32-le"), np.uint32)
    sizes = np.array([end - begin for begin, end, _, _ in ranges])
    text_offsets = np.cumsum([0, *(len(text) + 1 for text in texts[:-1])])
    shift = np.repeat(text_offsets - [offset for _, _, _, offset in ranges], sizes)
    starts = np.minimum(corpus.values_between("starts", first, stop) + shift, len(points))
    stops = np.minimum(starts + corpus.values_between("lengths", first, stop),
                       np.repeat(text_offsets + [*map(len, texts)], sizes))

    may_start_atom = corpus.values_between("word_starts", first, stop)  # an atom may begin with this token
    may_start_atom[np.cumsum(sizes) - sizes] = True
    if characters and len(points):
        cjk = _cjk()
        between_cjk = cjk[points[np.minimum(starts[1:], len(points) - 1)]] & cjk[points[np.maximum(stops[:-1], 1) - 1]]
        may_start_atom[1:] |= between_cjk & (starts[1:] >= stops[:-1])  # tokens that share a character stay in one atom

    spaces = _spaces()[points]
    retained = np.ones(len(points), bool)
    retained[1:] = ~(spaces[1:] & spaces[:-1])
    new_index = np.concatenate([[0], np.cumsum(retained)])  # index of each character among the retained ones
    points = np.where(spaces, SPACE, points)[retained].astype(np.uint32)
    points = _lower()[points] if corpus.tokenizer.lowercase else points
    blank = np.concatenate([points == SPACE, [False]])

    token = np.flatnonzero(may_start_atom)
    begin = new_index[starts[token]]
    begin = begin + blank[begin]  # some tokenizers include the space before a word in its first token
    end = new_index[np.maximum.reduceat(stops, token)] if len(token) else begin
    end = np.maximum(end - blank[end - 1], begin)
    last = np.append(token[1:], stop - first) - 1  # a word's first token may be the line end before its sentence
    sentence = np.searchsorted(corpus.sentence_starts, first + last, side="right")
    same_sentence = np.append(sentence[1:] == sentence[:-1], False)
    letters = np.concatenate([[0], np.cumsum(_letters()[points])])
    powers, _ = _powers(len(points))
    prefixes = np.zeros(len(points) + 1, np.uint64)
    np.cumsum((points.astype(np.uint64) + np.uint64(1)) * powers[:len(points)], out=prefixes[1:])
    return TextChunk(first, stop - first, points, begin, end, np.append(token, stop - first), same_sentence,
                     letters[end] > letters[begin], prefixes)


def _powers(count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """More than `count` powers of the base and of its inverse."""
    return _power_tables(max(16, count.bit_length()))


@cache
def _power_tables(bits: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    tables = np.array([[HASH_BASE], [pow(HASH_BASE, -1, 1 << 64)]], np.uint64).repeat((1 << bits) + 1, axis=1)
    tables[:, 0] = 1
    powers, inverse = np.cumprod(tables, axis=1)
    return powers, inverse


@cache
def _lower() -> np.ndarray:
    """Lower case of each code point, if that is a single code point."""
    table = np.arange(NUM_CODE_POINTS, dtype=np.uint32)
    small = [chr(point).lower() for point in range(0x20000)]
    table[:0x20000] = [ord(letter) if len(letter) == 1 else point for point, letter in enumerate(small)]
    return table


@cache
def _spaces() -> np.ndarray:
    table = np.zeros(NUM_CODE_POINTS, bool)
    table[:0x3001] = [chr(point).isspace() for point in range(0x3001)]
    return table


@cache
def _letters() -> np.ndarray:
    table = np.array([chr(point).isalnum() for point in range(0x40000)])
    return np.concatenate([table, np.zeros(NUM_CODE_POINTS - len(table), bool)])


@cache
def _cjk() -> np.ndarray:
    table = np.zeros(NUM_CODE_POINTS, bool)
    for low, high in CJK_POINTS:
        table[low:high + 1] = True
    return table
