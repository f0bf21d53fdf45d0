"""Regression metrics: Pearson and Spearman correlation by scipy, and mean squared error.

The correlation of a constant prediction is 0 here, where scipy returns NaN, so that runs can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stemma.errors import UserError
from stemma.tasks.metrics.metric import Metric, bootstrap_indices, mean_metric, safe_divide


@dataclass(frozen=True)
class NumberInputs:
    gold: NDArray[np.float64]
    predicted: NDArray[np.float64]


def metric_inputs(gold: Sequence[Any], predicted: Sequence[Any]) -> NumberInputs:
    return NumberInputs(require_finite(gold, "gold numbers"), require_finite(predicted, "predictions"))


def require_finite(values: Sequence[object], what: str) -> NDArray[np.float64]:
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"the {what} must be numbers: {error}.") from error
    infinite = int((~np.isfinite(numbers)).sum())
    if infinite:
        raise UserError(f"{infinite:,} of the {len(numbers):,} {what} are infinite or not a number; where training "
                        "diverged, a smaller learning rate helps.")
    return numbers


def pearson(inputs: NumberInputs) -> float:
    return _correlation(inputs, "pearsonr")


def spearman(inputs: NumberInputs) -> float:
    return _correlation(inputs, "spearmanr")


def squared_errors(inputs: NumberInputs) -> NDArray[np.float64]:
    return (inputs.gold - inputs.predicted) ** 2


def _correlation(inputs: NumberInputs, method: str) -> float:
    if np.ptp(inputs.gold) == 0 or np.ptp(inputs.predicted) == 0:
        return 0.0
    from scipy import stats  # on first use: it is slow to import

    return float(getattr(stats, method)(inputs.gold, inputs.predicted).statistic)


def bootstrap_pearson(inputs: NumberInputs, rng: np.random.Generator, rounds: int) -> np.ndarray:
    return np.concatenate([_pearson_of_rows(inputs.gold[sample], inputs.predicted[sample])
                           for sample in bootstrap_indices(len(inputs.gold), rng, rounds)])


def bootstrap_spearman(inputs: NumberInputs, rng: np.random.Generator, rounds: int) -> np.ndarray:
    """Ranks depend on the whole sample, so they are computed in each round."""
    from scipy.stats import rankdata

    return np.concatenate([_pearson_of_rows(rankdata(inputs.gold[sample], axis=1),
                                            rankdata(inputs.predicted[sample], axis=1))
                           for sample in bootstrap_indices(len(inputs.gold), rng, rounds)])


def _pearson_of_rows(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    left, right = (side - side.mean(axis=1, keepdims=True) for side in (left, right))
    return safe_divide((left * right).sum(axis=1), np.sqrt((left ** 2).sum(axis=1) * (right ** 2).sum(axis=1)))


METRICS = (
    Metric("pearson", "numbers", "Pearson correlation", pearson, bootstrap_pearson),
    Metric("spearman", "numbers", "Spearman rank correlation", spearman, bootstrap_spearman),
    mean_metric("mean_squared_error", "numbers", "mean squared error", squared_errors, higher_is_better=False),
)
