"""What a metric is: a number for a whole test set, and how far it would have moved with other examples.

The second is the bootstrap (Efron, 1979). Most metrics are a function of sums over examples: hits, entities found,
squared errors. Then a round needs only the sums over examples drawn with replacement, and all rounds are one array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

MAX_BOOTSTRAP_CELLS = 4_000_000  # of a temporary array: 32 MB of numbers
PredictionType = Literal["labels", "numbers", "scores", "tags", "spans", "texts"]


@dataclass(frozen=True)
class Metric:
    """`measure` and `resample` take what the kind's `prepare` made of the right answers and the predictions."""

    name: str
    prediction_type: PredictionType  # what a model has to predict for it
    description: str
    compute: Callable[[Any], float]
    bootstrap: Callable[[Any, np.random.Generator, int], np.ndarray] | None  # None: measured again in each round
    requires: str | None = None  # the module that has the last word
    higher_is_better: bool = True
    scale: int = 1  # of a perfect score: 1, or 100 where the official script prints percent


def mean_metric(name: str, prediction_type: PredictionType, description: str, per_example: Callable[[Any], np.ndarray],
                *, scale: int = 1,
             **rest: Any) -> Metric:
    """The mean of one value an example."""
    def resample(case: object, rng: np.random.Generator, rounds: int) -> np.ndarray:
        values = per_example(case)
        return scale * bootstrap_sums(values[:, None], rng, rounds)[:, 0] / len(values)

    return Metric(name, prediction_type, description, lambda case: scale * float(np.mean(per_example(case))), resample,
                  scale=scale, **rest)


def ratio_metric(name: str, prediction_type: PredictionType, description: str, per_example: Callable[[Any], np.ndarray],
           ratio: Callable[[np.ndarray], np.ndarray], **rest: Any) -> Metric:
    """A `ratio` of (rounds, k) sums over the (examples, k) that `each` counts."""
    return Metric(name, prediction_type, description, lambda case: float(ratio(per_example(case).sum(axis=0)[None])[0]),
                  lambda case, rng, rounds: ratio(bootstrap_sums(per_example(case), rng, rounds)), **rest)


def bootstrap_indices(units: int, rng: np.random.Generator, rounds: int, width: int = 1) -> Iterator[np.ndarray]:
    """Which examples each round draws, (some rounds, units); as many rounds at a time as fit into memory with ease."""
    at_once = max(1, MAX_BOOTSTRAP_CELLS // (units * width))
    for start in range(0, rounds, at_once):
        yield rng.integers(units, size=(min(at_once, rounds - start), units))


def bootstrap_sums(per_example: np.ndarray, rng: np.random.Generator, rounds: int) -> np.ndarray:
    """(rounds, k) sums of (examples, k), each round over as many examples drawn with replacement."""
    return np.concatenate([per_example[drawn].sum(axis=1) for drawn in bootstrap_indices(len(per_example), rng, rounds,
                                                                                         per_example.shape[1])])


def safe_divide(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, and 0 where there is no whole."""
    found = np.zeros(np.broadcast_shapes(part.shape, whole.shape))
    np.divide(part, whole, out=found, where=whole > 0)
    return found
