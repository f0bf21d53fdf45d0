"""The linear baseline of a task on whole texts: TF-IDF of word and character n-grams, and logistic regression (ridge
regression for numbers).

Character n-grams need no word boundaries, so it also works for Chinese. The n-grams of each text of a pair are features
of their own. Time and memory are bounded: a large training set is sampled, and the n-grams are chosen on a smaller
sample. On a small one the penalty is chosen by cross-validation. Nothing depends on a seed. scikit-learn is imported
when the baseline is fitted.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

MAX_FEATURES = 50_000  # of each group: words or characters of one text
MAX_WEIGHTS = 2_000_000  # features of a group x classes
MAX_EXAMPLES, MAX_CHARACTERS = 100_000, 8_000_000  # of the classifier; with more than 4 classes fewer characters
MAX_VOCABULARY_CHARACTERS = 2_000_000  # of the examples whose n-grams are counted: distinct n-grams need memory
MAX_ITERATIONS = 100
MIN_TUNED_EXAMPLES, MAX_TUNED_CHARACTERS = 200, 300_000  # cross-validation; the characters times the classes
FOLDS = 5
INVERSE_PENALTY = 10.0  # scikit-learn's C, and 1 / (2 alpha) of ridge regression, without cross-validation
INVERSE_PENALTIES = (0.1, 1.0, 10.0, 100.0, 1000.0)  # the strongest penalty first: it wins a tie
PREDICTED_AT_ONCE = 10_000  # texts
GROUPS: tuple[dict[str, Any], ...] = (
    {"token_pattern": r"\w+|[^\w\s]", "ngram_range": (1, 2)}, {"analyzer": "char", "ngram_range": (1, 4)})
METHODS = {"logistic": "TF-IDF + logistic regression", "ridge": "TF-IDF + ridge regression"}
Method = Literal["logistic", "ridge"]
Texts = Sequence[str]  # the texts of one example


class LinearBaseline:
    """A classifier (`logistic`) or a regression (`ridge`) fitted to examples of one or more texts."""

    def __init__(self, texts: Sequence[Texts], gold: Sequence[Any], class_weight: Mapping[str, float] | None = None,
                 method: Method = "logistic"):
        started = time.perf_counter()
        classes = len(set(gold)) if method == "logistic" else 1
        rows = sample(texts, MAX_EXAMPLES, MAX_CHARACTERS * 4 // max(4, classes))
        texts, gold = [texts[row] for row in rows], [gold[row] for row in rows]
        self.num_examples = len(rows)
        self.groups = _fit_vocabulary(texts, min(MAX_FEATURES, max(1, MAX_WEIGHTS // max(2, classes))))
        self.inverse_penalty = INVERSE_PENALTY
        with warnings.catch_warnings():  # iterations are limited, and a class may be too rare for every fold
            warnings.simplefilter("ignore")
            self.estimator = self._fit(self._features(texts), gold, method, class_weight,
                                       sum(map(_length, texts)) * classes)
        self.seconds = time.perf_counter() - started

    def predict(self, texts: Sequence[Texts]) -> list[Any]:
        """A label for each example, or a number."""
        chunks = [texts[start:start + PREDICTED_AT_ONCE] for start in range(0, len(texts), PREDICTED_AT_ONCE)]
        return [value for chunk in chunks for value in self.estimator.predict(self._features(chunk)).tolist()]

    def _features(self, texts: Sequence[Texts]) -> Any:
        from scipy.sparse import csr_matrix, hstack

        columns = [vectorizer.transform(_column(texts, index)) for index, vectorizer in self.groups]
        return hstack(columns).tocsr() if columns else csr_matrix((len(texts), 1))

    def _fit(self, features: Any, gold: Sequence[Any], method: Method, class_weight: Mapping[str, float] | None,
             size: int) -> Any:
        from sklearn.dummy import DummyClassifier
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold

        if method == "logistic" and len(set(gold)) == 1:
            return DummyClassifier(strategy="most_frequent").fit(features, gold)
        estimator: Any = Ridge(1 / (2 * INVERSE_PENALTY), solver="sparse_cg") if method == "ridge" else \
            LogisticRegression(C=INVERSE_PENALTY, max_iter=MAX_ITERATIONS, class_weight=_weights(class_weight, gold))
        if len(gold) < MIN_TUNED_EXAMPLES or size > MAX_TUNED_CHARACTERS or not _enough_for_folds(gold, method):
            return estimator.fit(features, gold)
        grid = {"alpha": [1 / (2 * value) for value in INVERSE_PENALTIES]} if method == "ridge" else \
            {"C": INVERSE_PENALTIES}
        folds = KFold(FOLDS, shuffle=True, random_state=0) if method == "ridge" else StratifiedKFold(FOLDS)
        search = GridSearchCV(estimator, grid, cv=folds).fit(features, gold)
        self.inverse_penalty = INVERSE_PENALTIES[search.best_index_]
        return search.best_estimator_


def sample(texts: Sequence[Texts], examples: int, characters: int) -> list[int]:
    """The rows of a random sample within these limits, in their order; the sample depends on the number of rows alone,
    and has at least one."""
    if len(texts) <= examples and sum(map(_length, texts)) <= characters:
        return list(range(len(texts)))
    order = np.random.default_rng(0).permutation(len(texts))[:examples]
    total = np.cumsum([_length(texts[row]) for row in order])
    return sorted(order[:max(1, int((total <= characters).sum()))].tolist())


def _fit_vocabulary(texts: Sequence[Texts], max_features: int) -> list[tuple[int, Any]]:
    """(text of the example, vectorizer) of each group of features, with its n-grams and their document frequencies. A
    text without anything to count has no groups."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    groups = []
    counted = [texts[row] for row in sample(texts, len(texts), MAX_VOCABULARY_CHARACTERS)]
    for index in range(max(map(len, counted))):
        column = _column(counted, index)
        if any(text.strip() for text in column):
            groups += [(index, TfidfVectorizer(sublinear_tf=True, max_features=max_features, **group).fit(column))
                       for group in GROUPS]
    return groups


def _weights(class_weight: Mapping[str, float] | None, gold: Sequence[Any]) -> dict[Any, float] | None:
    """The weights of the classes that occur."""
    return None if class_weight is None else {label: class_weight[label] for label in set(gold)}


def _enough_for_folds(gold: Sequence[Any], method: Method) -> bool:
    """Whether every fold can have two classes."""
    counts = sorted(Counter(gold).values())
    return method == "ridge" or counts[-2] >= FOLDS


def _column(texts: Sequence[Texts], index: int) -> list[str]:
    return [row[index] if index < len(row) else "" for row in texts]


def _length(texts: Texts) -> int:
    return sum(map(len, texts))
