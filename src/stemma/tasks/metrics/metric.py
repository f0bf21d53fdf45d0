"""What a metric is: a number for a whole test set, and how far it would have moved with other examples.

The second is the bootstrap (Efron, 1979). Most metrics are a function of sums over examples: hits, entities found,
squared errors. Then a round needs only the sums over examples drawn with replacement, and all rounds are one array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

CELLS = 4_000_000  # of a temporary array: 32 MB of numbers
Needs = Literal["labels", "numbers", "scores", "tags", "spans", "texts"]


@dataclass(frozen=True)
class Metric:
    """`measure` and `resample` take what the kind's `prepare` made of the right answers and the predictions."""

    name: str
    needs: Needs  # what a model has to predict for it
    about: str
    measure: Callable[[Any], float]
    resample: Callable[[Any, np.random.Generator, int], np.ndarray] | None  # None: measured again in each round
    library: str | None = None  # the module that has the last word
    higher_is_better: bool = True
    scale: int = 1  # of a perfect score: 1, or 100 where the official script prints percent


def averaged(name: str, needs: Needs, about: str, each: Callable[[Any], np.ndarray], *, scale: int = 1,
             **rest: Any) -> Metric:
    """The mean of one value an example."""
    def resample(case: object, rng: np.random.Generator, rounds: int) -> np.ndarray:
        values = each(case)
        return scale * resampled_sums(values[:, None], rng, rounds)[:, 0] / len(values)

    return Metric(name, needs, about, lambda case: scale * float(np.mean(each(case))), resample, scale=scale, **rest)


def summed(name: str, needs: Needs, about: str, each: Callable[[Any], np.ndarray],
           ratio: Callable[[np.ndarray], np.ndarray], **rest: Any) -> Metric:
    """A `ratio` of (rounds, k) sums over the (examples, k) that `each` counts."""
    return Metric(name, needs, about, lambda case: float(ratio(each(case).sum(axis=0)[None])[0]),
                  lambda case, rng, rounds: ratio(resampled_sums(each(case), rng, rounds)), **rest)


def draws(units: int, rng: np.random.Generator, rounds: int, width: int = 1) -> Iterator[np.ndarray]:
    """Which examples each round draws, (some rounds, units); as many rounds at a time as fit into memory with ease."""
    at_once = max(1, CELLS // (units * width))
    for start in range(0, rounds, at_once):
        yield rng.integers(units, size=(min(at_once, rounds - start), units))


def resampled_sums(each: np.ndarray, rng: np.random.Generator, rounds: int) -> np.ndarray:
    """(rounds, k) sums of (examples, k), each round over as many examples drawn with replacement."""
    return np.concatenate([each[drawn].sum(axis=1) for drawn in draws(len(each), rng, rounds, each.shape[1])])


def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, and 0 where there is no whole."""
    found = np.zeros(np.broadcast_shapes(part.shape, whole.shape))
    np.divide(part, whole, out=found, where=whole > 0)
    return found
