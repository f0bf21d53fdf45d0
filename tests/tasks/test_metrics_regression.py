"""Correlations by scipy, and the scores of a diverged or constant model."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from stemma.errors import UserError
from stemma.tasks.metrics import compute_scores, metrics_for
from stemma.tasks.metrics.regression import NumberInputs, bootstrap_pearson, bootstrap_spearman


def test_correlations_and_squared_error_equal_values_by_hand():
    scores = compute_scores("regress", ("pearson", "spearman", "mean_squared_error"), [0.0, 1.0, 2.0, 5.0],
                           [1.0, 0.0, 2.0, 3.0])
    # around the means 2 and 1.5: (-2, -1, 0, 3) and (-.5, -1.5, .5, 1.5)
    assert scores["pearson"] == pytest.approx((1 + 1.5 + 4.5) / np.sqrt(14 * 5))
    assert scores["spearman"] == pytest.approx(1 - 6 * 2 / (4 * 15))  # two neighbours changed places
    assert scores["mean_squared_error"] == pytest.approx((1 + 1 + 0 + 4) / 4)
    assert not metrics_for("regress")["mean_squared_error"].higher_is_better


def test_ties_share_their_rank():
    gold, predicted = [1, 2, 2, 3], [10, 20, 30, 30]
    ranks = np.corrcoef([1, 2.5, 2.5, 4], [1, 2, 3.5, 3.5])[0, 1]
    assert compute_scores("regress", ("spearman",), gold, predicted)["spearman"] == pytest.approx(ranks)


def test_a_constant_prediction_has_correlation_zero():
    assert compute_scores("regress", ("pearson", "spearman"), [1, 2, 3], [2, 2, 2]) == {"pearson": 0, "spearman": 0}
    assert compute_scores("regress", ("pearson",), [1], [2]) == {"pearson": 0}


def test_non_numbers_are_rejected():
    with pytest.raises(UserError, match="2 of the 3 predictions are infinite or not a number"):
        compute_scores("regress", ("pearson",), [1, 2, 3], [float("nan"), 1, float("inf")])
    with pytest.raises(UserError, match="the gold numbers must be numbers: .*high"):
        compute_scores("regress", ("pearson",), [1, "high"], [1, 2])


@pytest.mark.parametrize(("resample", "reference"),
                         [(bootstrap_pearson, stats.pearsonr), (bootstrap_spearman, stats.spearmanr)])
def test_each_bootstrap_round_is_scipys_score_of_its_sample(resample, reference):
    rng = np.random.default_rng(3)
    case = NumberInputs(rng.integers(5, size=30) * 1.0, rng.normal(size=30))
    scores = resample(case, np.random.default_rng(7), 20)
    drawn = np.random.default_rng(7).integers(30, size=(20, 30))
    assert scores == pytest.approx([reference(case.gold[rows], case.predicted[rows]).statistic for rows in drawn])
