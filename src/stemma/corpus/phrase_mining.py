"""Mines phrases: n-grams with a high normalised pointwise mutual information (NPMI), first bigrams, then extensions of
each phrase by the word before or after it, and so on.

Each length is one pass over the text. Only pairs of frequent words and extensions of phrases are counted, in tables of
bounded size. A phrase never crosses a sentence end, and every word of it has a letter or digit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stemma.corpus.corpus import Corpus
from stemma.corpus.text_chunks import TextChunk, iter_text_chunks
from stemma.text.collocations import CountTable, npmi

SCORE = "npmi"
# Columns of an n-gram: hashes of both parts at the two possible splits (all but the last word | last word, first word |
# all but the first word), then one occurrence: first token and end (exclusive).
COLUMNS = 6


@dataclass(frozen=True)
class Phrase:
    """An n-gram that occurs together more often than by chance."""

    text: str
    words: int
    count: int
    score: float


def mine_phrases(corpus: Corpus, min_count: int, threshold: float, max_words: int,
                 progress: Callable[[int], None] | None = None) -> list[Phrase]:
    """All phrases of 2 to `max_words` words with at least `min_count` occurrences and a score of at least `threshold`,
    best first. Calls `progress` with the number of tokens processed so far, over all passes."""
    report = progress or (lambda done: None)
    words = CountTable()
    total = 0
    for chunk in iter_text_chunks(corpus):
        total += int(chunk.has_alphanumeric.sum())
        words.add(chunk.hashes(chunk.atom_starts[chunk.has_alphanumeric],
                               chunk.atom_ends[chunk.has_alphanumeric]))
        report(chunk.first_token + chunk.num_tokens)
    words.keep(words.counts >= min_count)
    phrases: list[Phrase] = []
    parts = words  # candidates for extension: frequent words, then phrases
    for size in range(2, max_words + 1):
        ngrams = CountTable(COLUMNS)
        for chunk in iter_text_chunks(corpus):
            ngrams.add(*_candidates(chunk, size, words, parts))
            report((size - 1) * corpus.num_tokens + chunk.first_token + chunk.num_tokens)
        ngrams.keep(ngrams.counts >= min_count)
        scores = _scores(ngrams, words, parts, total)
        ngrams.keep(scores >= threshold)
        if not len(ngrams):
            break
        texts = _texts(corpus, ngrams.columns[:, 4:].astype(np.int64))
        phrases += [Phrase(text, size, int(count), float(score)) for text, count, score
                    in zip(texts, ngrams.counts, scores[scores >= threshold], strict=True)]
        parts = ngrams
    return sorted(phrases, key=lambda phrase: (-phrase.score, -phrase.count, phrase.text))


def _candidates(chunk: TextChunk, size: int, words: CountTable, parts: CountTable) -> tuple[np.ndarray, np.ndarray]:
    """Hashes and columns of the n-grams of `size` words that extend a known part by one word."""
    count = len(chunk.atom_starts) - size + 1
    if count <= 0:
        return np.zeros(0, np.uint64), np.zeros((0, COLUMNS), np.uint64)
    valid = np.ones(count, bool)
    for word in range(size):
        valid &= chunk.has_alphanumeric[word:word + count]
        if word < size - 1:
            valid &= chunk.next_in_sentence[word:word + count]
    first = np.flatnonzero(valid)
    last = first + size - 1
    begin, end = chunk.atom_starts, chunk.atom_ends
    parts_of_splits = [chunk.hashes(begin[first], end[last - 1]), chunk.hashes(begin[last], end[last]),
                       chunk.hashes(begin[first], end[first]), chunk.hashes(begin[first + 1], end[last])]
    extends_part = _extend_a_part(parts_of_splits, words, parts)
    token = chunk.first_token + chunk.atom_first_tokens
    columns = np.stack([*parts_of_splits, token[first].astype(np.uint64), token[last + 1].astype(np.uint64)], axis=1)
    return chunk.hashes(begin[first], end[last])[extends_part], columns[extends_part]


def _extend_a_part(parts_of_splits: list[np.ndarray], words: CountTable, parts: CountTable) -> np.ndarray:
    all_but_last, last, first, all_but_first = parts_of_splits
    return ((parts.counts_for(all_but_last) > 0) & (words.counts_for(last) > 0)) | \
        ((words.counts_for(first) > 0) & (parts.counts_for(all_but_first) > 0))


def _scores(phrases: CountTable, words: CountTable, parts: CountTable, total: int) -> np.ndarray:
    """The higher NPMI of the two splits, counting only splits whose longer part is a known phrase."""
    all_but_last, last, first, all_but_first = phrases.columns.T[:4]
    splits = [(parts.counts_for(all_but_last), words.counts_for(last)),
              (words.counts_for(first), parts.counts_for(all_but_first))]
    scores = [np.where((left > 0) & (right > 0), npmi(phrases.counts, left, right, total), -1.0)
              for left, right in splits]
    return np.maximum(*scores)


def _texts(corpus: Corpus, tokens: np.ndarray) -> list[str]:
    """Texts of these token ranges; each document is read once."""
    texts = [""] * len(tokens)
    document = np.searchsorted(corpus.document_starts, tokens[:, 0], side="right") - 1
    opened, text = -1, ""
    for index in np.argsort(tokens[:, 0], kind="stable"):
        if document[index] != opened:
            opened = int(document[index])
            text = corpus.document_text(opened)
        first, last = tokens[index, 0], tokens[index, 1] - 1
        start = int(corpus.values_between("starts", first, first + 1)[0])
        stop = int(corpus.values_between("starts", last, last + 1)[0]
                   + corpus.values_between("lengths", last, last + 1)[0])
        texts[index] = " ".join(text[start:stop].split())
    return texts
