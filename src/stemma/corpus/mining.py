"""Phrases mined from a corpus: words that stand together more often than chance has it, by normalised pointwise mutual
information; first pairs, then what a phrase that was found makes with the word before or behind it, and so on.

Each length is one pass over the text. Only pairs of frequent words, and neighbours of phrases, are counted, so that
memory is bounded by tables of a fixed size. No phrase crosses a sentence's end or holds a word without a letter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stemma.corpus.shards import Corpus
from stemma.corpus.stretches import Stretch, stretches
from stemma.text.collocations import Table, npmi

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


def mine(corpus: Corpus, min_count: int, threshold: float, longest: int,
         progress: Callable[[int], None] | None = None) -> list[Phrase]:
    """All phrases of 2 to `longest` words that occur `min_count` times and score at least `threshold`; the best
    first. `progress` hears how many tokens have been looked at, over all passes."""
    tell = progress or (lambda done: None)
    words = Table()
    total = 0
    for stretch in stretches(corpus):
        total += int(stretch.wordy.sum())
        words.add(stretch.keys(stretch.begin[stretch.wordy], stretch.end[stretch.wordy]))
        tell(stretch.first + stretch.tokens)
    words.keep(words.counts >= min_count)
    phrases: list[Phrase] = []
    parts = words  # what may become longer: frequent words, then phrases
    for size in range(2, longest + 1):
        found = Table(COLUMNS)
        for stretch in stretches(corpus):
            found.add(*_candidates(stretch, size, words, parts))
            tell((size - 1) * corpus.tokens + stretch.first + stretch.tokens)
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


def _candidates(stretch: Stretch, size: int, words: Table, parts: Table) -> tuple[np.ndarray, np.ndarray]:
    """Keys and columns of the runs of `size` words, of which all but one are a part that was found before."""
    count = len(stretch.begin) - size + 1
    if count <= 0:
        return np.zeros(0, np.uint64), np.zeros((0, COLUMNS), np.uint64)
    whole = np.ones(count, bool)
    for word in range(size):
        whole &= stretch.wordy[word:word + count]
        if word < size - 1:
            whole &= stretch.linked[word:word + count]
    first = np.flatnonzero(whole)
    last = first + size - 1
    begin, end = stretch.begin, stretch.end
    halves = [stretch.keys(begin[first], end[last - 1]), stretch.keys(begin[last], end[last]),
              stretch.keys(begin[first], end[first]), stretch.keys(begin[first + 1], end[last])]
    known = _known(halves, words, parts)
    token = stretch.first + stretch.token
    columns = np.stack([*halves, token[first].astype(np.uint64), token[last + 1].astype(np.uint64)], axis=1)
    return stretch.keys(begin[first], end[last])[known], columns[known]


def _known(halves: list[np.ndarray], words: Table, parts: Table) -> np.ndarray:
    return ((parts.of(halves[0]) > 0) & (words.of(halves[1]) > 0)) | \
        ((words.of(halves[2]) > 0) & (parts.of(halves[3]) > 0))


def _scores(found: Table, words: Table, parts: Table, total: int) -> np.ndarray:
    """The better of the two cuts, of those whose longer half is a phrase."""
    before, last, first, behind = found.columns.T[:4]
    cuts = [(parts.of(before), words.of(last)), (words.of(first), parts.of(behind))]
    scores = [np.where((left > 0) & (right > 0), npmi(found.counts, left, right, total), -1.0) for left, right in cuts]
    return np.maximum(*scores)


def _texts(corpus: Corpus, tokens: np.ndarray) -> list[str]:
    """What is written at these tokens (first, behind): each document is read once."""
    made = [""] * len(tokens)
    document = np.searchsorted(corpus.documents, tokens[:, 0], side="right") - 1
    opened, text = -1, ""
    for number in np.argsort(tokens[:, 0], kind="stable"):
        if document[number] != opened:
            opened = int(document[number])
            text = corpus.text(opened)
        last = tokens[number, 1] - 1
        start = int(corpus.slice("starts", tokens[number, 0], tokens[number, 0] + 1)[0])
        stop = int(corpus.slice("starts", last, last + 1)[0] + corpus.slice("lengths", last, last + 1)[0])
        made[number] = " ".join(text[start:stop].split())
    return made
