"""Accuracy, F1 and Matthews correlation of labels, and the confusion matrix."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from stemma.errors import UserError
from stemma.tasks.metrics import compute_scores, confusion, metrics_for
from stemma.tasks.metrics.classification import metric_inputs

# as counts: 3 times 1 as 1, 1 as 0, 2 times 0 as 1, 4 times 0 as 0
GOLD = ["1"] * 4 + ["0"] * 6
SAID = ["1", "1", "1", "0", "1", "1", "0", "0", "0", "0"]
COLOURS = ["red", "red", "blue", "green", "green", "green"]
GUESSES = ["red", "blue", "blue", "green", "red", "green"]


def test_two_classes_by_hand():
    scores = compute_scores("pair", ("accuracy", "f1", "macro_f1", "micro_f1", "matthews"), GOLD, SAID)
    assert list(scores) == ["accuracy", "f1", "macro_f1", "micro_f1", "matthews"]
    assert scores["accuracy"] == scores["micro_f1"] == pytest.approx(0.7)
    assert scores["f1"] == pytest.approx(2 * 3 / (2 * 3 + 2 + 1))
    assert scores["macro_f1"] == pytest.approx((6 / 9 + 8 / 11) / 2)
    assert scores["matthews"] == pytest.approx((3 * 4 - 2 * 1) / sqrt(5 * 4 * 6 * 5))


def test_which_class_is_positive():
    gold, predicted = ["no", "yes", "yes"], ["no", "no", "yes"]
    assert compute_scores("classify", ("f1",), gold, predicted)["f1"] == pytest.approx(2 / 3)  # the last label, "yes"
    assert compute_scores("classify", ("f1",), gold, ["no", "no", "no"],
                          labels=["yes", "no"])["f1"] == pytest.approx(1 / 2)
    assert compute_scores("classify", ("f1",), gold, ["no", "no", "no"], positive="yes")["f1"] == 0
    # "1", though 2 is last
    assert compute_scores("classify", ("f1",), ["1", "2"], ["1", "1"])["f1"] == pytest.approx(2 / 3)
    # never said, never right
    assert compute_scores("classify", ("f1",), ["0", "0"], ["0", "0"], labels=["0", "1"])["f1"] == 0


def test_many_classes():
    assert compute_scores("classify", ("macro_f1",), COLOURS,
                          GUESSES)["macro_f1"] == pytest.approx((1 / 2 + 2 / 3 + 4 / 5) / 3)
    # 4 hits of 6; as right 2, 1, 3 and as said 2, 2, 2 of red, blue, green
    expected = (4 * 6 - (2 * 2 + 1 * 2 + 3 * 2)) / sqrt((36 - 12) * (36 - 14))
    assert compute_scores("classify", ("matthews",), COLOURS, GUESSES)["matthews"] == pytest.approx(expected)
    with pytest.raises(UserError, match=r"f1 is that of one class, and here are 3 \(blue, green, red\); choose"):
        compute_scores("classify", ("f1",), COLOURS, GUESSES)
    assert compute_scores("classify", ("f1",), COLOURS, GUESSES, positive="green")["f1"] == pytest.approx(4 / 5)


def test_a_constant_prediction():
    scores = compute_scores("classify", ("matthews", "f1"), GOLD, ["0"] * 10)
    assert scores == {"matthews": 0, "f1": 0}


def test_multiple_choice_labels_are_indices():
    assert compute_scores("choice", ("accuracy",), [0, 2, 1, 3], [0, 2, 2, "3"]) == {"accuracy": 0.75}


def test_confusion():
    assert confusion(GOLD, SAID) == {"labels": ["0", "1"], "counts": [[4, 2], [1, 3]]}
    assert confusion(["10", "9"], ["9", "9"])["labels"] == ["9", "10"]  # numbers in their order
    # an order of one's own, a class that nobody met, and a prediction outside of it, which is not lost
    scores = confusion(COLOURS, ["pink", *GUESSES[1:]], ["red", "green", "blue", "grey"])
    assert scores["labels"] == ["red", "green", "blue", "grey", "pink"]
    assert scores["counts"][0] == [0, 0, 1, 0, 1] and sum(map(sum, scores["counts"])) == 6


class Cells:
    """A random generator that returns the given multinomial samples."""

    def __init__(self, drawn: np.ndarray):
        self.drawn = drawn

    def multinomial(self, total: int, shares: np.ndarray, size: int) -> np.ndarray:
        assert total == self.drawn[0].sum() and len(shares) == self.drawn.shape[1] and size == len(self.drawn)
        return self.drawn


@pytest.mark.parametrize("name", ["f1", "macro_f1", "matthews"])
def test_each_bootstrap_round_is_scikit_learns_score_of_its_sample(name):
    case = metric_inputs(COLOURS, GUESSES, labels=["red", "green", "blue"], positive="red")
    # the first round is the data itself; the last never meets blue; one in between has only one class
    tables = np.array([[[1, 0, 1], [1, 2, 0], [0, 0, 1]], [[0, 3, 0], [0, 1, 0], [1, 1, 0]],
                       [[6, 0, 0], [0, 0, 0], [0, 0, 0]], [[2, 1, 0], [2, 1, 0], [0, 0, 0]]])
    metric = metrics_for("classify")[name]
    scores = metric.bootstrap(case, Cells(tables.reshape(4, 9)), 4)
    for table, value in zip(tables, scores, strict=True):
        pairs = [(case.labels[row], case.labels[column])
                 for row in range(3) for column in range(3) for _ in range(table[row, column])]
        gold, predicted = zip(*pairs, strict=True)
        inputs = metric_inputs(gold, predicted, labels=case.labels, positive="red")
        assert value == pytest.approx(metric.compute(inputs))
    assert scores[0] == pytest.approx(metric.compute(case))


def test_an_unknown_positive_class_is_rejected():
    with pytest.raises(UserError, match='no label "2" that could be the positive one; the labels are 0, 1'):
        compute_scores("classify", ("f1",), GOLD, SAID, positive="2")
