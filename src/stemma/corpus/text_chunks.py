"""The text under the tokens of a corpus, stretch by stretch, as numbers: so that words, phrases and the entries of a
lexicon are counted and found by their spelling, whatever the tokenizer made of them.

Letters are lowered where the tokenizer does so, and any white space is one space. A stretch is cut into atoms: words,
or where single Chinese characters may begin and end a unit, these. Any run of characters has a 64-bit key that costs
the same for any length: the hashes of two prefixes, subtracted (modulo 2^64, where every odd base has an inverse).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from stemma.corpus.corpus import Corpus

CHUNK_TOKENS = 1 << 18  # looked at in one go
NUM_CODE_POINTS = 0x110000
SPACE = ord(" ")
DOCUMENT_SEPARATOR = "\0"  # between two documents; no text holds it
HASH_BASE = 0x9E3779B97F4A7C15  # odd; any number that is not round
CJK_POINTS = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))


@dataclass(frozen=True)
class TextChunk:
    """Tokens that follow each other, and their text as code points. Tokens are counted from the stretch's first."""

    first_token: int  # its first token in the corpus
    num_tokens: int
    characters: np.ndarray  # (C,) uint32
    atom_starts: np.ndarray  # (A,) first character of each atom, ascending
    atom_ends: np.ndarray  # (A,) behind its last character
    atom_first_tokens: np.ndarray  # (A + 1,) first token of each atom, and the end
    next_in_sentence: np.ndarray  # (A,) bool: the next atom belongs to the same sentence
    has_alphanumeric: np.ndarray  # (A,) bool: it has a letter or a digit
    prefix_hashes: NDArray[np.uint64]  # (C + 1,)

    def hashes(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
        """(N,): equal for equal runs of characters."""
        _, inverse = _powers(len(self.characters))
        return (self.prefix_hashes[ends] - self.prefix_hashes[starts]) * inverse[starts]


def iter_text_chunks(corpus: Corpus, characters: bool = False) -> Iterator[TextChunk]:
    """All of the corpus, in order. With `characters`, single Chinese characters are atoms; otherwise words are."""
    waiting: list[tuple[int, int, str, int]] = []
    for piece in _text_ranges(corpus):
        if waiting and piece[1] - waiting[0][0] > CHUNK_TOKENS:
            yield _build_chunk(corpus, waiting, characters)
            waiting = []
        waiting.append(piece)
    if waiting:
        yield _build_chunk(corpus, waiting, characters)


def normalize_characters(text: str, lowercase: bool) -> np.ndarray:
    """(C,) a text as the characters of a stretch are spelled."""
    points = np.frombuffer(" ".join(text.split()).encode("utf-32-le"), np.uint32)
    return _lower()[points] if lowercase else points


def hash_characters(characters: np.ndarray) -> int:
    """The key that a stretch gives this run."""
    powers, _ = _powers(len(characters))
    return int(((characters.astype(np.uint64) + np.uint64(1)) * powers[:len(characters)]).sum(dtype=np.uint64))


def _text_ranges(corpus: Corpus) -> Iterator[tuple[int, int, str, int]]:
    """First token and end, the text and its place in the document: documents, or parts of long ones by sentence."""
    for document in range(len(corpus.document_starts) - 1):
        start, stop = (int(bound) for bound in corpus.document_starts[document:document + 2])
        text = corpus.document_text(document)
        while start < stop:
            cut = stop
            if stop - start > CHUNK_TOKENS:
                cut = int(corpus.sentence_starts[np.searchsorted(corpus.sentence_starts, start + CHUNK_TOKENS,
                                                                 "right") - 1])
                cut = cut if cut > start else start + CHUNK_TOKENS
            edges = [int(corpus.values_between("starts", at, at + 1)[0]) if at < stop else len(text) for at in (start,
                                                                                                                cut)]
            yield start, cut, text[edges[0]:edges[1]], edges[0]
            start = cut


def _build_chunk(corpus: Corpus, ranges: list[tuple[int, int, str, int]], characters: bool) -> TextChunk:
    first, stop = ranges[0][0], ranges[-1][1]
    texts = [text for _, _, text, _ in ranges]
    points = np.frombuffer(DOCUMENT_SEPARATOR.join(texts).encode("utf-32-le"), np.uint32)
    sizes = np.array([end - begin for begin, end, _, _ in ranges])
    before = np.cumsum([0, *(len(text) + 1 for text in texts[:-1])])
    moved = np.repeat(before - [place for _, _, _, place in ranges], sizes)
    starts = np.minimum(corpus.values_between("starts", first, stop) + moved, len(points))
    stops = np.minimum(starts + corpus.values_between("lengths", first, stop),
                       np.repeat(before + [*map(len, texts)], sizes))

    opens = corpus.values_between("word_starts", first, stop)  # an atom may begin with this token
    opens[np.cumsum(sizes) - sizes] = True
    if characters and len(points):
        cjk = _cjk()
        alone = cjk[points[np.minimum(starts[1:], len(points) - 1)]] & cjk[points[np.maximum(stops[:-1], 1) - 1]]
        opens[1:] |= alone & (starts[1:] >= stops[:-1])  # tokens that share a character are not parted

    spaces = _spaces()[points]
    kept = np.ones(len(points), bool)
    kept[1:] = ~(spaces[1:] & spaces[:-1])
    place = np.concatenate([[0], np.cumsum(kept)])  # of each character among those kept
    points = np.where(spaces, SPACE, points)[kept].astype(np.uint32)
    points = _lower()[points] if corpus.tokenizer.lowercase else points
    blank = np.concatenate([points == SPACE, [False]])

    token = np.flatnonzero(opens)
    begin = place[starts[token]]
    begin = begin + blank[begin]  # some tokenizers count the space before a word as its own
    end = place[np.maximum.reduceat(stops, token)] if len(token) else begin
    end = np.maximum(end - blank[end - 1], begin)
    last = np.append(token[1:], stop - first) - 1  # a word's first token may be the line end before its sentence
    sentence = np.searchsorted(corpus.sentence_starts, first + last, side="right")
    linked = np.append(sentence[1:] == sentence[:-1], False)
    letters = np.concatenate([[0], np.cumsum(_letters()[points])])
    powers, _ = _powers(len(points))
    prefixes = np.zeros(len(points) + 1, np.uint64)
    np.cumsum((points.astype(np.uint64) + np.uint64(1)) * powers[:len(points)], out=prefixes[1:])
    return TextChunk(first, stop - first, points, begin, end, np.append(token, stop - first), linked,
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
    """The small letter of each code point, where it is a single one."""
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
