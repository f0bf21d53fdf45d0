"""The linear baseline of a classification task: TF-IDF of word and character n-grams, and logistic regression.

Character n-grams need no word boundaries, so it also works for Chinese. The n-grams of each text of a pair are features
of their own. Features and iterations are bounded, and nothing is random. scikit-learn is imported when it is fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MAX_FEATURES = 50_000  # of each group: words or characters of one text
MAX_ITERATIONS = 200
INVERSE_PENALTY = 10.0  # scikit-learn's C
Texts = Sequence[str]  # the texts of one example


class LinearBaseline:
    """A classifier fitted to examples of one or more texts."""

    def __init__(self, texts: Sequence[Texts], labels: Sequence[str]):
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression

        common: dict[str, Any] = {"sublinear_tf": True, "max_features": MAX_FEATURES}
        self.groups = []
        for index in range(max(map(len, texts))):
            for group in ({"token_pattern": r"\w+|[^\w\s]", "ngram_range": (1, 2)},
                          {"analyzer": "char", "ngram_range": (1, 4)}):
                self.groups.append((index, TfidfVectorizer(**common, **group)))
        features = self._join([vectorizer.fit_transform(_column(texts, index)) for index, vectorizer in self.groups])
        self.classifier = LogisticRegression(C=INVERSE_PENALTY, max_iter=MAX_ITERATIONS).fit(features, list(labels))

    def predict(self, texts: Sequence[Texts]) -> list[str]:
        columns = [vectorizer.transform(_column(texts, index)) for index, vectorizer in self.groups]
        return [str(label) for label in self.classifier.predict(self._join(columns))]

    @staticmethod
    def _join(columns: Sequence[Any]) -> Any:
        from scipy.sparse import hstack

        return hstack(columns).tocsr()


def _column(texts: Sequence[Texts], index: int) -> list[str]:
    return [row[index] if index < len(row) else "" for row in texts]
