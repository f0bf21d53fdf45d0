"""N-gram baselines of masked-token prediction: from token frequencies, or from the neighbouring tokens.

A pre-trained model should beat these. `UnigramBaseline` predicts the most frequent token, `BigramBaseline` the most
frequent one after the left neighbour, `TwoSidedBaseline` the most frequent one between both neighbours. If that context
is new or masked, it backs off to the neighbour with the higher confidence, and then to the unigram.

Probabilities are smoothed: the unigram adds one to every count; the others are mixtures of their relative frequencies
with it (an unseen context uses the level below). The mixture weights are fitted by expectation maximization on the last
tenth of the training ids, which are held out from the counts for this.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray

from stemma.errors import UserError

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

HELD_OUT_FRACTION = 0.1  # of the training ids, to fit the mixture weights
ROUNDS = 50  # of expectation maximization; it converges long before
UNKNOWN = -1  # a masked neighbour or one outside of the row, and any context with one


class ContextCounts:
    """Token counts by context. A context is an integer; a pair is `context * vocab_size + token`."""

    def __init__(self, contexts: Integers, tokens: Integers, vocab_size: int):
        known = contexts != UNKNOWN
        self.vocab_size = vocab_size
        self.pairs, self.counts = np.unique(contexts[known] * vocab_size + tokens[known], return_counts=True)
        context_of_pair = self.pairs // vocab_size
        self.contexts, first = np.unique(context_of_pair, return_index=True)
        self.totals = np.add.reduceat(self.counts, first)
        # Within a context the largest count comes first; ties go to the smallest id, so that runs agree.
        best = np.lexsort((self.pairs, -self.counts, context_of_pair))[first]
        self.best, self.top_probability = self.pairs[best] % vocab_size, self.counts[best] / self.totals

    def predict(self, contexts: Integers) -> tuple[Integers, Floats]:
        """The most frequent token of each context and its relative frequency, which is 0 for a new context."""
        row, known = _find(self.contexts, contexts)
        return self.best[row], np.where(known, self.top_probability[row], 0.0)

    def probability(self, contexts: Integers, tokens: Integers, default: Floats) -> Floats:
        """The relative frequency of each token in its context, or `default` for a new context."""
        row, known = _find(self.contexts, contexts)
        pair, seen = _find(self.pairs, contexts * self.vocab_size + tokens)
        return np.where(known, np.where(seen, self.counts[pair], 0) / self.totals[row], default)


class UnigramBaseline:
    """Predicts the most frequent token in any context; add-one smoothing."""

    def __init__(self, ids: NDArray[np.integer], vocab_size: int):
        self.counts = np.bincount(ids.ravel(), minlength=vocab_size)
        self.weights: Floats = np.ones(1)
        self._count(ids.astype(np.int64), vocab_size)

    @classmethod
    def fit(cls, ids: NDArray[np.integer], vocab_size: int) -> Self:
        """Fit to one stream of ids, or to the rows of a matrix (contexts do not cross rows)."""
        if ids.size < 20 or ids.shape[-1] < 3:
            raise UserError(f"{ids.size} tokens are too few to count neighbours in; give a longer text.")
        by_rows = ids.ndim == 2 and len(ids) >= 1 / HELD_OUT_FRACTION
        axis = 0 if by_rows else ids.ndim - 1
        seen, held_back = np.split(ids, [int(ids.shape[axis] * (1 - HELD_OUT_FRACTION))], axis=axis)
        model = cls(ids, vocab_size)
        everything = np.ones(held_back.shape, dtype=bool)
        model.weights = _fit_mixture(cls(seen, vocab_size)._mixture_levels(*_neighbors(held_back, ~everything,
                                                                                       everything)))
        return model

    def predict(self, ids: NDArray[np.integer], masked: Mask, scored: Mask | None = None) -> Integers:
        """The predicted token of each scored position (by default all masked ones), row by row."""
        left, right, _ = _neighbors(ids, masked, masked if scored is None else scored)
        return self._predict(left, right)

    def accuracy(self, ids: NDArray[np.integer], masked: Mask, scored: Mask | None = None) -> float:
        """Accuracy at the scored positions; `ids` are the original ones, and masked ones are not used as context."""
        return float(np.mean(self.predict(ids, masked, scored) == ids[masked if scored is None else scored]))

    def loss(self, ids: NDArray[np.integer], masked: Mask, scored: Mask | None = None) -> float:
        """Mean negative log-likelihood of the scored tokens in nats."""
        levels = self._mixture_levels(*_neighbors(ids, masked, masked if scored is None else scored))
        return float(-np.mean(np.log(levels @ self.weights)))

    def _count(self, ids: Integers, vocab_size: int) -> None:
        """Subclasses count their contexts here."""

    def _predict(self, left: Integers, right: Integers) -> Integers:
        return np.full(left.shape, self.counts.argmax())

    def _mixture_levels(self, left: Integers, right: Integers, tokens: Integers) -> Floats:
        """(positions, levels) probability of each token under each level of the mixture."""
        frequencies: Floats = (self.counts[tokens] + 1) / (self.counts.sum() + len(self.counts))
        return frequencies[:, None]


class BigramBaseline(UnigramBaseline):
    """Predicts the most frequent token after the left neighbour; backs off to the unigram."""

    def _count(self, ids: Integers, vocab_size: int) -> None:
        left, _, tokens = _neighbors(ids)
        self.after = ContextCounts(left, tokens, vocab_size)

    def _predict(self, left: Integers, right: Integers) -> Integers:
        token, confidence = self.after.predict(left)
        return np.where(confidence > 0, token, super()._predict(left, right))

    def _mixture_levels(self, left: Integers, right: Integers, tokens: Integers) -> Floats:
        unigram = super()._mixture_levels(left, right, tokens)
        return np.column_stack([unigram, self.after.probability(left, tokens, default=unigram[:, 0])])


class TwoSidedBaseline(BigramBaseline):
    """Predicts the most frequent token between both neighbours; backs off to the more confident neighbour, then to the
    unigram."""

    def _count(self, ids: Integers, vocab_size: int) -> None:
        super()._count(ids, vocab_size)
        left, right, tokens = _neighbors(ids)
        self.before = ContextCounts(right, tokens, vocab_size)
        self.between = ContextCounts(_pair_context(left, right, vocab_size), tokens, vocab_size)

    def _predict(self, left: Integers, right: Integers) -> Integers:
        _, after_confidence = self.after.predict(left)
        before, before_confidence = self.before.predict(right)
        between, confidence = self.between.predict(_pair_context(left, right, len(self.counts)))
        one_sided = np.where(before_confidence > after_confidence, before, super()._predict(left, right))
        return np.where(confidence > 0, between, one_sided)

    def _mixture_levels(self, left: Integers, right: Integers, tokens: Integers) -> Floats:
        lower = super()._mixture_levels(left, right, tokens)
        before = self.before.probability(right, tokens, default=lower[:, 0])
        between = self.between.probability(_pair_context(left, right, len(self.counts)), tokens,
                                           default=(lower[:, 1] + before) / 2)
        return np.column_stack([lower, before, between])


def _neighbors(ids: NDArray[np.integer], masked: Mask | None = None,
               scored: Mask | None = None) -> tuple[Integers, Integers, Integers]:
    """Left neighbour, right neighbour and original token of every scored position; masked neighbours are UNKNOWN."""
    visible = (ids if masked is None else np.where(masked, UNKNOWN, ids)).astype(np.int64)
    left, right = np.full_like(visible, UNKNOWN), np.full_like(visible, UNKNOWN)
    left[..., 1:], right[..., :-1] = visible[..., :-1], visible[..., 1:]
    scored = np.ones(ids.shape, dtype=bool) if scored is None else scored
    return left[scored], right[scored], ids[scored].astype(np.int64)


def _pair_context(left: Integers, right: Integers, vocab_size: int) -> Integers:
    return np.where((left == UNKNOWN) | (right == UNKNOWN), UNKNOWN, left * vocab_size + right)


def _find(ordered: Integers, keys: Integers) -> tuple[Integers, Mask]:
    row = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    return row, ordered[row] == keys


def _fit_mixture(levels: Floats) -> Floats:
    """Maximum-likelihood weights of the mixture of `levels` (positions, levels), by expectation maximization."""
    weights = np.full(levels.shape[1], 1 / levels.shape[1])
    for _ in range(ROUNDS):
        joint = levels * weights
        weights = (joint / joint.sum(axis=1, keepdims=True)).mean(axis=0)
    return weights
