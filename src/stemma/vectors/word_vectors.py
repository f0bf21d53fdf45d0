"""Words with one vector each, and how they are looked up and searched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stemma.errors import UserError, did_you_mean
from stemma.vectors.subwords import Subwords

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
SEARCH_NUMBERS = 1 << 24  # scores that a search computes at once


class Neighbor(NamedTuple):
    word: str
    similarity: float  # cosine


@dataclass(frozen=True)
class WordVectors:
    """Row i of `matrix` (words, width) is the vector of `words[i]`; words are different. `subwords`: vectors of
    character n-grams, from which words that are not in the list get a vector too (fastText). `name`: of the file, for
    messages."""

    words: Sequence[str]
    matrix: Floats
    subwords: Subwords | None = None
    name: str = "the vectors"

    def __post_init__(self) -> None:
        assert self.matrix.shape[0] == len(self.words)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return self.find(word) is not None

    @property
    def width(self) -> int:
        return int(self.matrix.shape[1])

    @cached_property
    def index(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def unit(self) -> Floats:
        """The vectors, scaled to length 1; zero vectors stay zero."""
        return normalize(self.matrix)

    def find(self, word: str) -> int | None:
        """The row of a word: as it is written, otherwise in lower case."""
        row = self.index.get(word)
        return self.index.get(word.lower()) if row is None else row

    def vector(self, word: str) -> Floats | None:
        """The vector of a word. A word that is not in the list has one if there are subwords, otherwise None."""
        row = self.find(word)
        if row is not None:
            return np.asarray(self.matrix[row])
        return None if self.subwords is None else self.subwords.compose([word])[0]

    def require_vector(self, word: str) -> Floats:
        vector = self.vector(word)
        if vector is None:
            raise UserError(f'{self.name} has no vector for "{word}".{did_you_mean(word, self.words)} Only vectors '
                            "of character n-grams (fastText's .bin) give one to any word.")
        return vector

    def for_words(self, words: Sequence[str], composed: bool = True) -> tuple[Floats, NDArray[np.bool_]]:
        """((words, width), (words,) whether it has a vector): the first layer of a network over these words. Rows
        without a vector are 0. `composed`: words that are not in the list get vectors from subwords, if there are."""
        rows = np.array([-1 if (row := self.find(word)) is None else row for word in words], np.int64)
        vectors = np.zeros((len(words), self.width), np.float32)
        known = rows >= 0
        vectors[known] = self.matrix[rows[known]]
        if composed and self.subwords is not None and not known.all():
            missing = np.flatnonzero(~known)
            vectors[missing] = self.subwords.compose([words[i] for i in missing.tolist()])
            known[missing] = True
        return vectors, known

    def neighbors(self, word: str, top: int = 10) -> list[Neighbor]:
        """The words with the most similar vectors, without the word itself."""
        return self.nearest(self.require_vector(word)[None], top, [[word]])[0]

    def nearest(self, vectors: Floats, top: int, excluded: Sequence[Sequence[str]] = ()) -> list[list[Neighbor]]:
        """For each vector the words with the most similar vectors, without its `excluded` words."""
        results: list[list[Neighbor]] = []
        excluded = excluded or [()] * len(vectors)
        for start, scores in self.similarities(vectors):
            for offset, row in enumerate(scores):
                without = [found for word in excluded[start + offset] if (found := self.find(word)) is not None]
                row[without] = -np.inf
                count = min(top, len(row) - len(set(without)))
                best = np.argpartition(-row, count - 1)[:count] if count > 0 else np.zeros(0, np.int64)
                best = best[np.lexsort((best, -row[best]))]  # ties in the order of the file
                results.append([Neighbor(self.words[i], float(row[i])) for i in best.tolist()])
        return results

    def similarities(self, vectors: Floats) -> Iterator[tuple[int, Floats]]:
        """(number of the first vector, (vectors, words) cosines), in parts that fit into memory."""
        queries = normalize(vectors)
        rows = max(1, SEARCH_NUMBERS // max(1, len(self)))
        for start in range(0, len(queries), rows):
            yield start, queries[start:start + rows] @ self.unit.T

    def first(self, limit: int) -> WordVectors:
        """The first `limit` words: the most frequent ones, as vector files are written."""
        return self if limit >= len(self) else WordVectors(self.words[:limit], self.matrix[:limit], self.subwords,
                                                           self.name)


def normalize(matrix: Floats) -> Floats:
    """Rows scaled to length 1; zero rows stay zero."""
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    scaled: Floats = np.asarray(matrix / np.maximum(norms, np.finfo(np.float32).tiny), np.float32)
    return scaled
