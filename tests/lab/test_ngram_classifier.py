"""The n-gram classifier of the quickstart, against scikit-learn on the same features and folds."""

from __future__ import annotations

import numpy as np
import pytest

from stemma.errors import UserError
from stemma.lab.quickstart.ngram_classifier import INVERSE_PENALTIES, NgramClassifier, folds

NOUNS = ["file", "socket", "parser", "module", "string", "thread", "buffer", "header"]
VERBS = ["opens", "closes", "reads", "writes", "checks", "returns"]


def examples(count: int, seed: int, noise: float = 0.2) -> list[tuple[str, int]]:
    """Sentences of two kinds that share most words; some labels are wrong, so that the penalty matters."""
    rng = np.random.default_rng(seed)
    pairs = []
    for index in range(count):
        label = index % 2
        text = f"{['The', 'A  '][label]} {rng.choice(NOUNS)} {rng.choice(VERBS)}, {rng.choice(['the', 'a'])} " \
               f"{rng.choice(NOUNS)} (and {rng.choice(NOUNS)})."
        pairs.append((text, label if rng.random() > noise else 1 - label))
    return pairs


def test_the_classifier_equals_scikit_learns_logistic_regression():
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, PredefinedSplit
    from sklearn.pipeline import FeatureUnion

    train, test = examples(90, 0), examples(60, 1)
    texts, labels = (list(column) for column in zip(*train, strict=True))
    features = FeatureUnion([
        ("words", TfidfVectorizer(token_pattern=r"\w+|[^\w\s]", ngram_range=(1, 2), sublinear_tf=True)),
        ("characters", TfidfVectorizer(analyzer="char", ngram_range=(1, 5), sublinear_tf=True))])
    reference = GridSearchCV(LogisticRegression(max_iter=2000, tol=1e-8), {"C": INVERSE_PENALTIES}, scoring="accuracy",
                             cv=PredefinedSplit(folds(labels))).fit(features.fit_transform(texts), labels)
    classifier = NgramClassifier(train)
    assert len(classifier.columns) == len(features.get_feature_names_out())
    assert classifier.inverse_penalty == reference.best_params_["C"]
    unseen = features.transform([text for text, _ in test])
    np.testing.assert_allclose(classifier.decision([text for text, _ in test]), reference.decision_function(unseen),
                               atol=0.01)
    assert classifier.accuracy(test) == reference.score(unseen, [label for _, label in test]) > 0.6


def test_folds_are_stratified_by_class():
    fold = folds([0, 0, 1, 1, 0, 0, 0, 1, 1, 1])
    assert sorted(fold[[0, 1, 4, 5, 6]]) == sorted(fold[[2, 3, 7, 8, 9]]) == [0, 1, 2, 3, 4]


def test_unseen_ngrams_give_the_intercept():
    fitted = NgramClassifier(examples(40, 0, noise=0))
    assert fitted.accuracy(examples(40, 2, noise=0)) > 0.8
    np.testing.assert_allclose(fitted.decision(["\u4e00", ""]), fitted.weights[-1].repeat(2))


@pytest.mark.parametrize("train", [[], [("one", 1), ("two", 1)], [("one", 0), ("two", 1), ("three", 2)]])
def test_other_than_two_classes_are_rejected(train):
    with pytest.raises(UserError, match="two classes"):
        NgramClassifier(train)


def test_two_examples_are_enough():
    assert NgramClassifier([("the file", 0), ("a socket", 1)]).accuracy([("some sockets", 1), ("this file", 0)]) == 1
