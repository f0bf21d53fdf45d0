"""A linear classifier of word and character n-grams: the baseline for fine-tuned models.

Logistic regression over tf-idf weights of word unigrams and bigrams and of character n-grams up to length five
(sublinear term frequency, smoothed inverse document frequency, both groups scaled to unit length). The L2 penalty is
chosen by cross-validation on the training labels. A test compares it with scikit-learn's TfidfVectorizer and
LogisticRegression.

There are far more features than examples, so the classifier is fitted in the span of the training examples, which
contains the solution (representer theorem): a few hundred coordinates replace tens of thousands.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from stemma.errors import UserError

WORDS, CHARACTERS = 2, 5                      # maximum n
INVERSE_PENALTIES = tuple(10.0 ** power for power in range(-2, 5))   # scikit-learn's C, the strongest penalty first
FOLDS = 5
CHUNK_ROWS = 64                               # rows that are dense at once
_WORD = re.compile(r"\w+|[^\w\s]")

Example = tuple[str, int]


class NgramClassifier:
    """A binary classifier, fitted to labelled texts."""

    def __init__(self, train: Sequence[Example]):
        texts, labels = [text for text, _ in train], torch.tensor([float(label) for _, label in train]).double()
        if set(labels.tolist()) != {0.0, 1.0}:
            raise UserError("an n-gram classifier needs examples of two classes, labelled 0 and 1.")
        counts = [[Counter(grams) for grams in _ngrams(text)] for text in texts]
        self.columns: dict[tuple[int, str], int] = {}
        frequency: Counter[int] = Counter()
        for row in counts:
            for group, grams in enumerate(row):
                frequency.update(self.columns.setdefault((group, gram), len(self.columns)) for gram in grams)
        documents = np.array([frequency[column] for column in range(len(self.columns))])
        self.idf = np.log((1 + len(texts)) / (1 + documents)) + 1
        self.rows = self._features(counts)
        products = self._products(self.rows)
        values, vectors = torch.linalg.eigh(products)
        nonzero = values > 1e-9 * values.max()
        self.rotation = vectors[:, nonzero] / values[nonzero].sqrt()  # from products with the rows to coordinates
        coordinates = products @ self.rotation
        self.inverse_penalty = _select_penalty(coordinates, labels)
        self.weights = _fit(coordinates, labels, self.inverse_penalty)

    def decision(self, texts: Sequence[str]) -> Tensor:
        """(texts,) the log-odds of class 1."""
        counts = [[Counter(grams) for grams in _ngrams(text)] for text in texts]
        return _scores(self._products(self._features(counts)) @ self.rotation, self.weights)

    def accuracy(self, examples: Sequence[Example]) -> float:
        texts, labels = zip(*examples, strict=True)
        return float(np.mean((self.decision(texts) > 0).numpy() == np.array(labels)))

    def _features(self, counts: Sequence[Sequence[Counter[str]]]) -> Tensor:
        """(texts, columns), sparse; n-grams that do not occur in the training texts are ignored."""
        indices: list[tuple[int, int]] = []
        weights: list[np.ndarray] = []
        for row_index, row in enumerate(counts):
            for group, grams in enumerate(row):
                known = [(self.columns[group, gram], count) for gram, count in grams.items()
                         if (group, gram) in self.columns]
                if known:
                    columns, times = np.array(known).T
                    weight = (1 + np.log(times)) * self.idf[columns]
                    weights.append(weight / np.linalg.norm(weight))
                    indices += [(row_index, int(column)) for column in columns]
        index = torch.tensor(indices, dtype=torch.long).reshape(-1, 2).T
        return torch.sparse_coo_tensor(index, torch.from_numpy(np.concatenate([np.zeros(0), *weights])),
                                       (len(counts), len(self.columns)), check_invariants=True).coalesce()

    def _products(self, features: Tensor) -> Tensor:
        """(texts, training texts) inner products, in chunks of dense rows."""
        parts = [torch.sparse.mm(self.rows, features.index_select(0, chunk).to_dense().T).T
                 for chunk in torch.split(torch.arange(len(features)), CHUNK_ROWS)]
        return torch.cat(parts)


def _ngrams(text: str) -> tuple[Iterator[str], Iterator[str]]:
    """Word n-grams and character n-grams of the lowercased text, with white space collapsed."""
    text = re.sub(r"\s\s+", " ", text.lower())
    words = _WORD.findall(text)
    return ((" ".join(words[start:start + size]) for size in range(1, WORDS + 1)
             for start in range(len(words) - size + 1)),
            (text[start:start + size] for size in range(1, CHARACTERS + 1) for start in range(len(text) - size + 1)))


def folds(labels: Sequence[float]) -> np.ndarray:
    """The fold of each example, stratified by class."""
    fold_of_example, seen = np.zeros(len(labels), dtype=int), Counter[float]()
    for index, label in enumerate(labels):
        fold_of_example[index] = seen[label] % FOLDS
        seen[label] += 1
    return fold_of_example


def _select_penalty(coordinates: Tensor, labels: Tensor) -> float:
    """The penalty with the best cross-validation accuracy; ties go to the strongest."""
    fold = torch.from_numpy(folds(labels.tolist()))
    if any(len(set(labels[fold != index].tolist())) < 2 or not (fold == index).any() for index in range(FOLDS)):
        return 1.0  # too few examples for cross-validation
    accuracy = [0.0] * len(INVERSE_PENALTIES)
    for test_fold in range(FOLDS):
        is_train, weights = fold != test_fold, None
        for penalty_index, inverse_penalty in enumerate(INVERSE_PENALTIES):
            weights = _fit(coordinates[is_train], labels[is_train], inverse_penalty, weights)
            correct = (_scores(coordinates[~is_train], weights) > 0) == labels[~is_train].bool()
            accuracy[penalty_index] += float(correct.double().mean())
    return INVERSE_PENALTIES[int(np.argmax(np.round(accuracy, 9)))]


def _fit(coordinates: Tensor, labels: Tensor, inverse_penalty: float, start: Tensor | None = None) -> Tensor:
    """Weights and, last, an intercept that is not penalised: the minimum of
    inverse_penalty * loss + |weights|^2 / 2."""
    weights = torch.zeros(coordinates.shape[1] + 1).double() if start is None else start.clone()
    weights.requires_grad_(True)
    optimizer = torch.optim.LBFGS([weights], max_iter=300, tolerance_grad=1e-6, tolerance_change=1e-12,
                                  line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = inverse_penalty * torch.nn.functional.binary_cross_entropy_with_logits(
            _scores(coordinates, weights), labels, reduction="sum") + weights[:-1].square().sum() / 2
        total = total / max(1.0, inverse_penalty)  # the same order of magnitude for every penalty
        total.backward()
        return total

    optimizer.step(loss)
    return weights.detach()


def _scores(coordinates: Tensor, weights: Tensor) -> Tensor:
    return coordinates @ weights[:-1] + weights[-1]
