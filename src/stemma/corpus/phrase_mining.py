"""Phrases mined from a corpus: words that stand together more often than chance has it, by normalised pointwise mutual
information; first pairs, then what a phrase that was found makes with the word before or behind it, and so on.

Each length is one pass over the text. Only pairs of frequent words, and neighbours of phrases, are counted, so that
memory is bounded by tables of a fixed size. No phrase crosses a sentence's end or holds a word without a letter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stemma.corpus.corpus import Corpus
from stemma.corpus.text_chunks import TextChunk, iter_text_chunks
from stemma.text.collocations import CountTable, npmi

SCORE = "npmi"
# What is noted of an n-gram: the keys of its two halves at either cut (first words | last, first | last words), then
# where it was met: first token and the one behind.
COLUMNS = 6


@dataclass(frozen=True)
class Phrase:
    text: str
    words: int
    count: int
    score: float


def mine_phrases(corpus: Corpus, min_count: int, threshold: float, max_words: int,
         progress: Callable[[int], None] | None = None) -> list[Phrase]:
    """All phrases of 2 to `longest` words that occur `min_count` times and score at least `threshold`; the best
    first. `progress` hears how many tokens have been looked at, over all passes."""
    tell = progress or (lambda done: None)
    words = CountTable()
    total = 0
    for stretch in iter_text_chunks(corpus):
        total += int(stretch.has_alphanumeric.sum())
        words.add(stretch.hashes(stretch.atom_starts[stretch.has_alphanumeric],
                                 stretch.atom_ends[stretch.has_alphanumeric]))
        tell(stretch.first_token + stretch.num_tokens)
    words.keep(words.counts >= min_count)
    phrases: list[Phrase] = []
    parts = words  # what may become longer: frequent words, then phrases
    for size in range(2, max_words + 1):
        found = CountTable(COLUMNS)
        for stretch in iter_text_chunks(corpus):
            found.add(*_candidates(stretch, size, words, parts))
            tell((size - 1) * corpus.num_tokens + stretch.first_token + stretch.num_tokens)
        found.keep(found.counts >= min_count)
        scores = _scores(found, words, parts, total)
        found.keep(scores >= threshold)
        if not len(found):
            break
        spelt = _texts(corpus, found.columns[:, 4:].astype(np.int64))
        phrases += [Phrase(text, size, int(count), float(score)) for text, count, score
                    in zip(spelt, found.counts, scores[scores >= threshold], strict=True)]
        parts = found
    return sorted(phrases, key=lambda phrase: (-phrase.score, -phrase.count, phrase.text))


def _candidates(chunk: TextChunk, size: int, words: CountTable, parts: CountTable) -> tuple[np.ndarray, np.ndarray]:
    """Keys and columns of the runs of `size` words, of which all but one are a part that was found before."""
    count = len(chunk.atom_starts) - size + 1
    if count <= 0:
        return np.zeros(0, np.uint64), np.zeros((0, COLUMNS), np.uint64)
    whole = np.ones(count, bool)
    for word in range(size):
        whole &= chunk.has_alphanumeric[word:word + count]
        if word < size - 1:
            whole &= chunk.next_in_sentence[word:word + count]
    first = np.flatnonzero(whole)
    last = first + size - 1
    begin, end = chunk.atom_starts, chunk.atom_ends
    halves = [chunk.hashes(begin[first], end[last - 1]), chunk.hashes(begin[last], end[last]),
              chunk.hashes(begin[first], end[first]), chunk.hashes(begin[first + 1], end[last])]
    known = _are_known(halves, words, parts)
    token = chunk.first_token + chunk.atom_first_tokens
    columns = np.stack([*halves, token[first].astype(np.uint64), token[last + 1].astype(np.uint64)], axis=1)
    return chunk.hashes(begin[first], end[last])[known], columns[known]


def _are_known(halves: list[np.ndarray], words: CountTable, parts: CountTable) -> np.ndarray:
    return ((parts.counts_for(halves[0]) > 0) & (words.counts_for(halves[1]) > 0)) | \
        ((words.counts_for(halves[2]) > 0) & (parts.counts_for(halves[3]) > 0))


def _scores(phrases: CountTable, words: CountTable, parts: CountTable, total: int) -> np.ndarray:
    """The better of the two cuts, of those whose longer half is a phrase."""
    before, last, first, behind = phrases.columns.T[:4]
    cuts = [(parts.counts_for(before), words.counts_for(last)), (words.counts_for(first), parts.counts_for(behind))]
    scores = [np.where((left > 0) & (right > 0), npmi(phrases.counts, left, right, total), -1.0) for left,
              right in cuts]
    return np.maximum(*scores)


def _texts(corpus: Corpus, tokens: np.ndarray) -> list[str]:
    """What is written at these tokens (first, behind): each document is read once."""
    made = [""] * len(tokens)
    document = np.searchsorted(corpus.document_starts, tokens[:, 0], side="right") - 1
    opened, text = -1, ""
    for number in np.argsort(tokens[:, 0], kind="stable"):
        if document[number] != opened:
            opened = int(document[number])
            text = corpus.document_text(opened)
        last = tokens[number, 1] - 1
        start = int(corpus.values_between("starts", tokens[number, 0], tokens[number, 0] + 1)[0])
        stop = int(corpus.values_between("starts", last, last + 1)[0] + corpus.values_between("lengths", last,
                                                                                              last + 1)[0])
        made[number] = " ".join(text[start:stop].split())
    return made
