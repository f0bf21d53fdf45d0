"""The vectorised baselines against dictionaries and loops that anybody can check by eye."""

from collections import Counter, defaultdict

import numpy as np
import pytest

from stemma.errors import UserError
from stemma.lab.quickstart.baselines import BigramBaseline, TwoSidedBaseline, UnigramBaseline

VOCABULARY = 12


def chain(length: int, seed: int) -> np.ndarray:
    """Ids in which a neighbour tells something: each is its left neighbour plus a small step, or noise."""
    rng = np.random.default_rng(seed)
    ids = [0]
    for _ in range(length - 1):
        ids.append((ids[-1] + rng.choice([1, 1, 1, 2])) % 10 if rng.random() < 0.8 else int(rng.integers(10)))
    return np.array(ids)


def most_common(counter: Counter) -> int:
    return min(counter, key=lambda token: (-counter[token], token))


class Slow:
    """Dictionaries of counters; a context with a hidden neighbour is never looked up."""

    def __init__(self, rows):
        self.unigram, self.after, self.before, self.between = Counter(), *(defaultdict(Counter) for _ in range(3))
        for row in rows:
            for i, token in enumerate(row):
                left = row[i - 1] if i else None
                right = row[i + 1] if i + 1 < len(row) else None
                self.unigram[token] += 1
                if left is not None:
                    self.after[left][token] += 1
                if right is not None:
                    self.before[right][token] += 1
                if left is not None and right is not None:
                    self.between[left, right][token] += 1

    def share(self, counter, token):
        return counter[token] / sum(counter.values())

    def guess(self, kind, left, right):
        if kind is TwoSidedBaseline:
            if (left, right) in self.between:
                return most_common(self.between[left, right])
            sides = [side[word] for side, word in ((self.after, left), (self.before, right)) if word in side]
            if sides:
                best = max(sides, key=lambda counter: self.share(counter, most_common(counter)))
                return most_common(best)
        if kind is BigramBaseline and left in self.after:
            return most_common(self.after[left])
        return most_common(self.unigram)

    def probability(self, kind, weights, left, right, token):
        unigram = (self.unigram[token] + 1) / (sum(self.unigram.values()) + VOCABULARY)
        after = self.share(self.after[left], token) if left in self.after else unigram
        before = self.share(self.before[right], token) if right in self.before else unigram
        pair = (left, right)
        between = self.share(self.between[pair], token) if pair in self.between else (after + before) / 2
        levels = {UnigramBaseline: [unigram], BigramBaseline: [unigram, after],
                  TwoSidedBaseline: [unigram, after, before, between]}[kind]
        return sum(weight * level for weight, level in zip(weights, levels, strict=True))


@pytest.mark.parametrize("kind", [UnigramBaseline, BigramBaseline, TwoSidedBaseline])
@pytest.mark.parametrize("shape", [(60,), (400,), (40, 10)])
def test_agrees_with_dictionaries(kind, shape):
    train = chain(int(np.prod(shape)), seed=1).reshape(shape)
    test = np.append(chain(195, seed=2), [10, 11, 10, 3, 11]).reshape((200,) if len(shape) == 1 else (20, 10))
    hidden = np.random.default_rng(3).random(test.shape) < 0.3
    model, slow = kind.fit(train, VOCABULARY), Slow(np.atleast_2d(train).tolist())

    right_guesses, logs, guesses = 0, [], []
    for row, mask in zip(np.atleast_2d(test).tolist(), np.atleast_2d(hidden), strict=True):
        for i in np.flatnonzero(mask):
            left = row[i - 1] if i and not mask[i - 1] else None
            right = row[i + 1] if i + 1 < len(row) and not mask[i + 1] else None
            guesses.append(slow.guess(kind, left, right))
            right_guesses += guesses[-1] == row[i]
            logs.append(np.log(slow.probability(kind, model.weights, left, right, row[i])))
    assert model.predict(test, hidden).tolist() == guesses
    assert model.accuracy(test, hidden) == pytest.approx(right_guesses / len(guesses))
    assert model.loss(test, hidden) == pytest.approx(-np.mean(logs))


@pytest.mark.parametrize("kind", [UnigramBaseline, BigramBaseline, TwoSidedBaseline])
def test_probabilities_sum_to_one(kind):
    model = kind.fit(chain(300, seed=4), VOCABULARY)
    hidden = np.array([False, True, False, True, True])
    total = np.zeros(hidden.sum())
    for token in range(VOCABULARY):
        ids = np.where(hidden, token, [3, 0, 11, 0, 0])       # the true id under the mask changes, the view does not
        for place, position in enumerate(np.flatnonzero(hidden)):
            total[place] += np.exp(-model.loss(ids, hidden, np.arange(5) == position))
    assert total == pytest.approx(np.ones(3))


def test_hidden_neighbours_are_not_looked_at():
    model = TwoSidedBaseline.fit(chain(500, seed=5), VOCABULARY)
    hidden = np.array([False, True, True, True, False])
    one, other = np.array([1, 2, 3, 4, 5]), np.array([1, 9, 8, 7, 5])
    assert model.predict(one, hidden).tolist() == model.predict(other, hidden).tolist()
    scored = np.array([False, False, True, False, False])
    assert model.accuracy(one, hidden, scored) in (0.0, 1.0)


def test_more_context_predicts_better_and_the_weights_matter():
    train, test = chain(5000, seed=6), chain(2000, seed=7)
    hidden = np.zeros(2000, dtype=bool)
    hidden[1:-1:3] = True
    models = [kind.fit(train, VOCABULARY) for kind in (UnigramBaseline, BigramBaseline, TwoSidedBaseline)]
    losses = [model.loss(test, hidden) for model in models]
    accuracies = [model.accuracy(test, hidden) for model in models]
    assert losses == sorted(losses, reverse=True)
    assert accuracies == sorted(accuracies)
    assert losses[2] < losses[0] - 0.5
    fitted = models[2].weights
    assert fitted.sum() == pytest.approx(1)
    models[2].weights = np.full(4, 0.25)
    assert models[2].loss(test, hidden) > losses[2]


def test_refuses_too_little_text():
    with pytest.raises(UserError, match="too few"):
        BigramBaseline.fit(np.array([1, 2, 3]), 5)
