"""GloVe (Pennington, Socher & Manning 2014) as in the paper and in the authors' code: plain loops, one pair after the
other."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction


def count_neighbors(documents: Iterable[Sequence[int]], known: set[int],
                    window: int) -> dict[tuple[int, int], Fraction]:
    """The sums of 1 / distance of all pairs of known words in a window; unknown words are left out before."""
    counts: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for document in documents:
        words = [word for word in document if word in known]
        for position, word in enumerate(words):
            for before in range(max(0, position - window), position):
                weight = Fraction(1, position - before)
                counts[words[before], word] += weight
                counts[word, words[before]] += weight
    return dict(counts)


class LiteralGlove:
    """Vectors and biases of words and contexts, as lists of floats."""

    def __init__(self, words: dict[int, list[float]], contexts: dict[int, list[float]], x_max: float, alpha: float,
                 rate: float):
        self.w, self.c = words, contexts
        self.b, self.d = dict.fromkeys(words, 0.0), dict.fromkeys(contexts, 0.0)
        self.w_squares = {word: [1.0] * len(vector) for word, vector in words.items()}
        self.c_squares = {word: [1.0] * len(vector) for word, vector in contexts.items()}
        self.b_squares, self.d_squares = dict.fromkeys(words, 1.0), dict.fromkeys(contexts, 1.0)
        self.x_max, self.alpha, self.rate = x_max, alpha, rate

    def train(self, i: int, j: int, count: float) -> float:
        """One step for one pair; returns its cost."""
        difference = sum(x * y for x, y in zip(self.w[i], self.c[j], strict=True))
        difference += self.b[i] + self.d[j] - math.log(count)
        weight = 1.0 if count > self.x_max else (count / self.x_max) ** self.alpha
        cost = 0.5 * weight * difference * difference
        scaled = weight * difference * self.rate
        for k in range(len(self.w[i])):
            word_gradient, context_gradient = scaled * self.c[j][k], scaled * self.w[i][k]
            self.w[i][k] -= word_gradient / math.sqrt(self.w_squares[i][k])
            self.c[j][k] -= context_gradient / math.sqrt(self.c_squares[j][k])
            self.w_squares[i][k] += word_gradient**2
            self.c_squares[j][k] += context_gradient**2
        self.b[i] -= scaled / math.sqrt(self.b_squares[i])
        self.d[j] -= scaled / math.sqrt(self.d_squares[j])
        self.b_squares[i] += scaled**2
        self.d_squares[j] += scaled**2
        return cost
