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
    made = []
    for number in range(count):
        label = number % 2
        text = f"{['The', 'A  '][label]} {rng.choice(NOUNS)} {rng.choice(VERBS)}, {rng.choice(['the', 'a'])} " \
               f"{rng.choice(NOUNS)} (and {rng.choice(NOUNS)})."
        made.append((text, label if rng.random() > noise else 1 - label))
    return made


def test_it_is_scikit_learns_logistic_regression():
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, PredefinedSplit
    from sklearn.pipeline import FeatureUnion

    train, test = examples(90, 0), examples(60, 1)
    texts, labels = (list(column) for column in zip(*train, strict=True))
    features = FeatureUnion([
        ("words", TfidfVectorizer(token_pattern=r"\w+|[^\w\s]", ngram_range=(1, 2), sublinear_tf=True)),
        ("characters", TfidfVectorizer(analyzer="char", ngram_range=(1, 5), sublinear_tf=True))])
    theirs = GridSearchCV(LogisticRegression(max_iter=2000, tol=1e-8), {"C": INVERSE_PENALTIES}, scoring="accuracy",
                          cv=PredefinedSplit(folds(labels))).fit(features.fit_transform(texts), labels)
    ours = NgramClassifier(train)
    assert len(ours.columns) == len(features.get_feature_names_out())
    assert ours.inverse_penalty == theirs.best_params_["C"]
    unseen = features.transform([text for text, _ in test])
    np.testing.assert_allclose(ours.decision([text for text, _ in test]), theirs.decision_function(unseen), atol=0.01)
    assert ours.accuracy(test) == theirs.score(unseen, [label for _, label in test]) > 0.6


def test_folds_hold_both_classes():
    place = folds([0, 0, 1, 1, 0, 0, 0, 1, 1, 1])
    assert sorted(place[[0, 1, 4, 5, 6]]) == sorted(place[[2, 3, 7, 8, 9]]) == [0, 1, 2, 3, 4]


def test_what_was_never_seen_decides_nothing_but_the_intercept():
    fitted = NgramClassifier(examples(40, 0, noise=0))
    assert fitted.accuracy(examples(40, 2, noise=0)) > 0.8
    np.testing.assert_allclose(fitted.decision(["\u4e00", ""]), fitted.weights[-1].repeat(2))


@pytest.mark.parametrize("train", [[], [("one", 1), ("two", 1)], [("one", 0), ("two", 1), ("three", 2)]])
def test_two_classes_are_needed(train):
    with pytest.raises(UserError, match="two classes"):
        NgramClassifier(train)


def test_few_examples_are_enough():
    assert NgramClassifier([("the file", 0), ("a socket", 1)]).accuracy([("some sockets", 1), ("this file", 0)]) == 1
