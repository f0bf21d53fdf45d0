"""The vectorised n-gram baselines against a slow implementation with dictionaries and loops."""

from collections import Counter, defaultdict

import numpy as np
import pytest

from stemma.errors import UserError
from stemma.lab.quickstart.baselines import BigramBaseline, TwoSidedBaseline, UnigramBaseline

VOCABULARY = 12


def chain(length: int, seed: int) -> np.ndarray:
    """Token ids that depend on their neighbours: each is its left neighbour plus a small step, or noise."""
    rng = np.random.default_rng(seed)
    ids = [0]
    for _ in range(length - 1):
        ids.append((ids[-1] + rng.choice([1, 1, 1, 2])) % 10 if rng.random() < 0.8 else int(rng.integers(10)))
    return np.array(ids)


def most_common(counter: Counter) -> int:
    return min(counter, key=lambda token: (-counter[token], token))


class SlowBaseline:
    """Counts in dictionaries; a context with a masked neighbour is never looked up."""

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

    def frequency(self, counter, token):
        return counter[token] / sum(counter.values())

    def predict(self, kind, left, right):
        if kind is TwoSidedBaseline:
            if (left, right) in self.between:
                return most_common(self.between[left, right])
            sides = [side[word] for side, word in ((self.after, left), (self.before, right)) if word in side]
            if sides:
                best = max(sides, key=lambda counter: self.frequency(counter, most_common(counter)))
                return most_common(best)
        if kind is BigramBaseline and left in self.after:
            return most_common(self.after[left])
        return most_common(self.unigram)

    def probability(self, kind, weights, left, right, token):
        unigram = (self.unigram[token] + 1) / (sum(self.unigram.values()) + VOCABULARY)
        after = self.frequency(self.after[left], token) if left in self.after else unigram
        before = self.frequency(self.before[right], token) if right in self.before else unigram
        pair = (left, right)
        between = self.frequency(self.between[pair], token) if pair in self.between else (after + before) / 2
        levels = {UnigramBaseline: [unigram], BigramBaseline: [unigram, after],
                  TwoSidedBaseline: [unigram, after, before, between]}[kind]
        return sum(weight * level for weight, level in zip(weights, levels, strict=True))


@pytest.mark.parametrize("kind", [UnigramBaseline, BigramBaseline, TwoSidedBaseline])
@pytest.mark.parametrize("shape", [(60,), (400,), (40, 10)])
def test_predictions_and_losses_equal_the_slow_implementation(kind, shape):
    train = chain(int(np.prod(shape)), seed=1).reshape(shape)
    test = np.append(chain(195, seed=2), [10, 11, 10, 3, 11]).reshape((200,) if len(shape) == 1 else (20, 10))
    masked = np.random.default_rng(3).random(test.shape) < 0.3
    model, slow = kind.fit(train, VOCABULARY), SlowBaseline(np.atleast_2d(train).tolist())

    num_correct, logs, predictions = 0, [], []
    for row, mask in zip(np.atleast_2d(test).tolist(), np.atleast_2d(masked), strict=True):
        for i in np.flatnonzero(mask):
            left = row[i - 1] if i and not mask[i - 1] else None
            right = row[i + 1] if i + 1 < len(row) and not mask[i + 1] else None
            predictions.append(slow.predict(kind, left, right))
            num_correct += predictions[-1] == row[i]
            logs.append(np.log(slow.probability(kind, model.weights, left, right, row[i])))
    assert model.predict(test, masked).tolist() == predictions
    assert model.accuracy(test, masked) == pytest.approx(num_correct / len(predictions))
    assert model.loss(test, masked) == pytest.approx(-np.mean(logs))


@pytest.mark.parametrize("kind", [UnigramBaseline, BigramBaseline, TwoSidedBaseline])
def test_probabilities_sum_to_one(kind):
    model = kind.fit(chain(300, seed=4), VOCABULARY)
    masked = np.array([False, True, False, True, True])
    total = np.zeros(masked.sum())
    for token in range(VOCABULARY):
        ids = np.where(masked, token, [3, 0, 11, 0, 0])  # the masked ids change, the context does not
        for index, position in enumerate(np.flatnonzero(masked)):
            total[index] += np.exp(-model.loss(ids, masked, np.arange(5) == position))
    assert total == pytest.approx(np.ones(3))


def test_masked_neighbours_are_not_used():
    model = TwoSidedBaseline.fit(chain(500, seed=5), VOCABULARY)
    masked = np.array([False, True, True, True, False])
    first, second = np.array([1, 2, 3, 4, 5]), np.array([1, 9, 8, 7, 5])
    assert model.predict(first, masked).tolist() == model.predict(second, masked).tolist()
    scored = np.array([False, False, True, False, False])
    assert model.accuracy(first, masked, scored) in (0.0, 1.0)


def test_more_context_predicts_better_and_mixture_weights_are_fitted():
    train, test = chain(5000, seed=6), chain(2000, seed=7)
    masked = np.zeros(2000, dtype=bool)
    masked[1:-1:3] = True
    models = [kind.fit(train, VOCABULARY) for kind in (UnigramBaseline, BigramBaseline, TwoSidedBaseline)]
    losses = [model.loss(test, masked) for model in models]
    accuracies = [model.accuracy(test, masked) for model in models]
    assert losses == sorted(losses, reverse=True)
    assert accuracies == sorted(accuracies)
    assert losses[2] < losses[0] - 0.5
    fitted = models[2].weights
    assert fitted.sum() == pytest.approx(1)
    models[2].weights = np.full(4, 0.25)
    assert models[2].loss(test, masked) > losses[2]


def test_too_little_text_is_rejected():
    with pytest.raises(UserError, match="too few"):
        BigramBaseline.fit(np.array([1, 2, 3]), 5)
