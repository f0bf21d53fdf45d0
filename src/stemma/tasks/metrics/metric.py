"""A metric: a score of a test set, and its bootstrap distribution (Efron, 1979).

Most metrics are functions of sums over examples: correct predictions, matched entities, squared errors. A bootstrap
round then needs only the sums over the resampled examples, and all rounds are one array operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

MAX_BOOTSTRAP_CELLS = 4_000_000  # of a temporary array: 32 MB
PredictionType = Literal["labels", "numbers", "scores", "tags", "spans", "texts"]


@dataclass(frozen=True)
class Metric:
    """`compute` and `bootstrap` take the result of the kind's `metric_inputs`."""

    name: str
    prediction_type: PredictionType  # what the model predicts
    description: str
    compute: Callable[[Any], float]
    bootstrap: Callable[[Any, np.random.Generator, int], np.ndarray] | None  # None: computed anew in each round
    requires: str | None = None  # the library that computes it
    higher_is_better: bool = True
    scale: int = 1  # a perfect score: 1, or 100 if the official script prints percent


def mean_metric(name: str, prediction_type: PredictionType, description: str, per_example: Callable[[Any], np.ndarray],
                *, scale: int = 1, **fields: Any) -> Metric:
    """A mean of one value per example."""
    def bootstrap(inputs: object, rng: np.random.Generator, rounds: int) -> np.ndarray:
        values = per_example(inputs)
        return scale * bootstrap_sums(values[:, None], rng, rounds)[:, 0] / len(values)

    return Metric(name, prediction_type, description, lambda inputs: scale * float(np.mean(per_example(inputs))),
                  bootstrap, scale=scale, **fields)


def ratio_metric(name: str, prediction_type: PredictionType, description: str, per_example: Callable[[Any], np.ndarray],
                 ratio: Callable[[np.ndarray], np.ndarray], **fields: Any) -> Metric:
    """A `ratio` of (rounds, k) sums over the (examples, k) counts of `per_example`."""
    return Metric(name, prediction_type, description,
                  lambda inputs: float(ratio(per_example(inputs).sum(axis=0)[None])[0]),
                  lambda inputs, rng, rounds: ratio(bootstrap_sums(per_example(inputs), rng, rounds)), **fields)


def bootstrap_indices(num_examples: int, rng: np.random.Generator, rounds: int, width: int = 1) -> Iterator[np.ndarray]:
    """Indices of the resampled examples, (rounds, units); yields as many rounds at a time as fit in memory."""
    chunk = max(1, MAX_BOOTSTRAP_CELLS // (num_examples * width))
    for start in range(0, rounds, chunk):
        yield rng.integers(num_examples, size=(min(chunk, rounds - start), num_examples))


def bootstrap_sums(per_example: np.ndarray, rng: np.random.Generator, rounds: int) -> np.ndarray:
    """(rounds, k) sums of (examples, k), each over a bootstrap sample of the examples."""
    examples, width = per_example.shape
    return np.concatenate([per_example[sample].sum(axis=1)
                           for sample in bootstrap_indices(examples, rng, rounds, width)])


def safe_divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """numerator / denominator, and 0 where the denominator is 0."""
    result = np.zeros(np.broadcast_shapes(numerator.shape, denominator.shape))
    np.divide(numerator, denominator, out=result, where=denominator > 0)
    return result
