"""How well numbers are guessed: Pearson's and Spearman's correlation by scipy, and the mean squared error.

A model that always says the same correlates with nothing: 0 here, where scipy says "not a number", so that runs can be
compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stemma.errors import UserError
from stemma.tasks.metrics.library import library
from stemma.tasks.metrics.metric import Metric, averaged, draws, share


@dataclass(frozen=True)
class Numbers:
    gold: NDArray[np.float64]
    predicted: NDArray[np.float64]


def prepare(gold: Sequence[Any], predicted: Sequence[Any]) -> Numbers:
    return Numbers(finite(gold, "right numbers"), finite(predicted, "predictions"))


def finite(values: Sequence[object], what: str) -> NDArray[np.float64]:
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"the {what} must be numbers: {error}.") from error
    wrong = int((~np.isfinite(numbers)).sum())
    if wrong:
        raise UserError(f"{wrong:,} of the {len(numbers):,} {what} are infinite or not a number; where training "
                        "diverged, a smaller learning rate helps.")
    return numbers


def pearson(case: Numbers) -> float:
    return _correlation(case, "pearsonr")


def spearman(case: Numbers) -> float:
    return _correlation(case, "spearmanr")


def squared_errors(case: Numbers) -> NDArray[np.float64]:
    return (case.gold - case.predicted) ** 2


def _correlation(case: Numbers, how: str) -> float:
    if np.ptp(case.gold) == 0 or np.ptp(case.predicted) == 0:
        return 0.0
    return float(getattr(library("scipy.stats"), how)(case.gold, case.predicted).statistic)


def resampled_pearson(case: Numbers, rng: np.random.Generator, rounds: int) -> np.ndarray:
    return np.concatenate([_pearson_of_rows(case.gold[drawn], case.predicted[drawn])
                           for drawn in draws(len(case.gold), rng, rounds)])


def resampled_spearman(case: Numbers, rng: np.random.Generator, rounds: int) -> np.ndarray:
    """A rank depends on who else was drawn, so each round is ranked anew."""
    rank = library("scipy.stats").rankdata
    return np.concatenate([_pearson_of_rows(rank(case.gold[drawn], axis=1), rank(case.predicted[drawn], axis=1))
                           for drawn in draws(len(case.gold), rng, rounds)])


def _pearson_of_rows(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    left, right = (side - side.mean(axis=1, keepdims=True) for side in (left, right))
    return share((left * right).sum(axis=1), np.sqrt((left ** 2).sum(axis=1) * (right ** 2).sum(axis=1)))


METRICS = (
    Metric("pearson", "numbers", "Pearson's correlation", pearson, resampled_pearson, library="scipy.stats"),
    Metric("spearman", "numbers", "Spearman's correlation of ranks", spearman, resampled_spearman,
           library="scipy.stats"),
    averaged("mean_squared_error", "numbers", "mean squared error", squared_errors, higher_is_better=False),
)
