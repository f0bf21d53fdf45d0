"""Two-sided counts against a slow implementation with dictionaries and loops."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from closeness import assert_close
from ngram_models import count

from stemma.counts.neighbors import LEVELS, estimate_neighbors, fit_mixture
from stemma.counts.packed_ngrams import NgramPacker
from stemma.network.neighbor_tables import NeighborTable

SIZE, END, MASK = 12, 10, 11
WEIGHTS = {"none": [1.0], "left": [0.3, 0.7], "both": [0.1, 0.2, 0.3, 0.4]}


def chain(length: int, seed: int) -> np.ndarray:
    """Token ids that depend on their neighbours: each is its left neighbour plus a small step, or noise."""
    rng = np.random.default_rng(seed)
    ids = [0]
    for _ in range(length - 1):
        ids.append((ids[-1] + rng.choice([1, 1, 1, 2])) % 10 if rng.random() < 0.8 else int(rng.integers(10)))
    return np.array(ids)


class SlowCounts:
    """Counts in dictionaries; the neighbour of the first and of the last token of a document is None."""

    def __init__(self, documents):
        self.unigram, self.after, self.before, self.between = Counter(), *(defaultdict(Counter) for _ in range(3))
        for document in documents:
            for i, token in enumerate(document):
                left = document[i - 1] if i else None
                right = document[i + 1] if i + 1 < len(document) else None
                self.unigram[token] += 1
                if left is not None:
                    self.after[left][token] += 1
                if right is not None:
                    self.before[right][token] += 1
                if left is not None and right is not None:
                    self.between[left, right][token] += 1

    def levels(self, left, right, token):
        unigram = (self.unigram[token] + 1) / (sum(self.unigram.values()) + SIZE)
        after = self.frequency(self.after, left, token, unigram)
        before = self.frequency(self.before, right, token, unigram)
        return [unigram, after, before, self.frequency(self.between, (left, right), token, (after + before) / 2)]

    def frequency(self, contexts, context, token, default):
        return contexts[context][token] / sum(contexts[context].values()) if context in contexts else default


def table_of(documents, neighbors, weights=None) -> NeighborTable:
    packer = NgramPacker({"none": 1, "left": 2, "both": 3}[neighbors], SIZE)
    context_ids = np.arange(SIZE) < END
    pieces = [count(documents, packer, END)]
    half = len(pieces[0][0]) // 2
    split = [tuple(array[:half] for array in pieces[0]), tuple(array[half:] for array in pieces[0])]
    table = NeighborTable(SIZE, neighbors)
    table.assign(estimate_neighbors(split, packer, neighbors, context_ids),
                 np.array(WEIGHTS[neighbors] if weights is None else weights), context_ids)
    return table


@pytest.mark.parametrize("neighbors", list(LEVELS))
@pytest.mark.parametrize("lengths", [(60,), (400,), (10,) * 40, (1, 2, 3, 50)])
def test_probabilities_equal_the_slow_implementation(neighbors, lengths):
    documents = [chain(length, seed).tolist() for seed, length in enumerate(lengths)]
    table, slow = table_of(documents, neighbors), SlowCounts(documents)
    rng = np.random.default_rng(3)
    contexts = rng.integers(-1, SIZE, (300, 2))  # also of special tokens, and of nothing
    tokens = rng.integers(0, SIZE, 300)
    sides = [[int(token) if 0 <= token < END else None for token in context] for context in contexts]
    levels = [slow.levels(left, right, int(token))[:1 + len(table.levels)]
              for (left, right), token in zip(sides, tokens, strict=True)]
    result = table.mixture_levels(torch.from_numpy(contexts), torch.from_numpy(tokens))
    assert_close(result.tolist(), levels, tolerance=1e-5)
    scores = table.score(torch.from_numpy(contexts), torch.from_numpy(tokens))
    assert_close(scores.exp().tolist(), (np.array(levels) @ WEIGHTS[neighbors]).tolist(), tolerance=1e-5)
    every = table.distributions(torch.from_numpy(contexts))
    assert_close(every.exp().sum(1), torch.ones(300), tolerance=1e-5)
    assert_close(every.gather(1, torch.from_numpy(tokens)[:, None])[:, 0], scores, tolerance=1e-5)


def test_the_mixture_has_the_weights_of_maximum_likelihood():
    train, held_out = [chain(5000, seed=6).tolist()], chain(2000, seed=7)
    contexts = torch.from_numpy(np.column_stack([held_out[:-2], held_out[2:]]))
    tokens = torch.from_numpy(held_out[1:-1])
    losses = []
    for neighbors in LEVELS:
        levels = table_of(train, neighbors).mixture_levels(contexts, tokens).double().numpy()
        weights = fit_mixture(levels)
        assert weights.sum() == pytest.approx(1) and (weights > 0).all()
        loss = -np.log(levels @ weights).mean()
        rng = np.random.default_rng(0)
        for other in rng.dirichlet(np.ones(len(weights)), 20):
            assert -np.log(np.maximum(levels @ other, 1e-30)).mean() >= loss - 1e-3
        losses.append(loss)
    assert losses == sorted(losses, reverse=True) and losses[2] < losses[0] - 0.5  # more context predicts better
