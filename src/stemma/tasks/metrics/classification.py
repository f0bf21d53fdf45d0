"""How often a class is guessed right: accuracy, and by scikit-learn F1 and Matthews' correlation.

F1 between two classes is that of the positive one: "1" where there is such a label, else the last, as in GLUE's own
files. F1 over all classes is `macro_f1`, the mean of each class's, or `micro_f1`, which counts each example alike and
equals accuracy where an example has one class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stemma.errors import UserError
from stemma.tasks.metrics.metric import Metric, mean_metric, safe_divide
from stemma.tasks.metrics.optional_import import optional_import


@dataclass(frozen=True)
class LabelInputs:
    gold: list[str]
    predicted: list[str]
    labels: list[str]
    positive: str | None  # None: there are more than two classes and nobody said which is meant


def metric_inputs(gold: Sequence[Any], predicted: Sequence[Any], *, labels: Sequence[str] | None = None,
            positive: str | None = None) -> LabelInputs:
    """`labels` are the classes in their order (by default those that occur); a prediction may be none of them."""
    right, said = [str(label) for label in gold], [str(label) for label in predicted]
    known = [str(label) for label in labels or ()]
    known += _sorted_labels({*right, *said}.difference(known))
    if positive is not None and positive not in known:
        raise UserError(f'no label "{positive}" that could be the positive one; the labels are {", ".join(known)}.')
    if positive is None and len(known) <= 2:
        positive = "1" if "1" in known else known[-1]
    return LabelInputs(right, said, known, positive)


def confusion(gold: Sequence[object], predicted: Sequence[object],
              labels: Sequence[str] | None = None) -> dict[str, Any]:
    """{"labels": [...], "counts": [[...]]}: a row for what is right, a column for what was said."""
    case = metric_inputs(gold, predicted, labels=labels)
    return {"labels": case.labels, "counts": confusion_counts(case).tolist()}


def is_correct(case: LabelInputs) -> np.ndarray:
    return np.array([right == said for right, said in zip(case.gold, case.predicted, strict=True)], dtype=np.float64)


def positive_f1(case: LabelInputs) -> float:
    return float(optional_import("sklearn.metrics").f1_score(case.gold, case.predicted, labels=[_positive_class(case)],
                                                     average="macro", zero_division=0))


def macro_f1(case: LabelInputs) -> float:
    return float(optional_import("sklearn.metrics").f1_score(case.gold, case.predicted, average="macro",
                                                             zero_division=0))


def matthews(case: LabelInputs) -> float:
    if len({*case.gold, *case.predicted}) == 1:  # scikit-learn's 0, without its warning
        return 0.0
    return float(optional_import("sklearn.metrics").matthews_corrcoef(case.gold, case.predicted))


def confusion_counts(case: LabelInputs) -> np.ndarray:
    """How often (right, said) occurs."""
    place = {label: number for number, label in enumerate(case.labels)}
    found = np.zeros((len(place), len(place)), dtype=np.int64)
    np.add.at(found, ([place[label] for label in case.gold], [place[label] for label in case.predicted]), 1)
    return found


def bootstrap_counts(case: LabelInputs, rng: np.random.Generator, rounds: int) -> np.ndarray:
    """(rounds, labels, labels). Examples drawn with replacement fall into the cells by a multinomial distribution, so
    that no example need be drawn."""
    found = confusion_counts(case)
    total = int(found.sum())
    return rng.multinomial(total, found.ravel() / total, size=rounds).reshape(rounds, *found.shape)


def bootstrap_f1(case: LabelInputs, rng: np.random.Generator, rounds: int) -> np.ndarray:
    place = case.labels.index(_positive_class(case))
    return _f1_per_class(bootstrap_counts(case, rng, rounds))[0][:, place]


def bootstrap_macro_f1(case: LabelInputs, rng: np.random.Generator, rounds: int) -> np.ndarray:
    scores, occurs = _f1_per_class(bootstrap_counts(case, rng, rounds))
    mean: np.ndarray = scores.sum(axis=1) / occurs.sum(axis=1)  # a class that a round did not draw has no F1 in it
    return mean


def bootstrap_matthews(case: LabelInputs, rng: np.random.Generator, rounds: int) -> np.ndarray:
    """The correlation for many classes (Gorodkin, 2004), as scikit-learn has it."""
    found = bootstrap_counts(case, rng, rounds).astype(np.float64)
    total, found_right = float(len(case.gold)), np.trace(found, axis1=1, axis2=2)
    right, said = found.sum(axis=2), found.sum(axis=1)
    spread = (total ** 2 - (right ** 2).sum(axis=1)) * (total ** 2 - (said ** 2).sum(axis=1))
    covariance = found_right * total - (right * said).sum(axis=1)
    return safe_divide(covariance, np.sqrt(spread))


def _f1_per_class(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, labels) F1 of each class, and whether the class occurs at all."""
    whole = counts.sum(axis=1) + counts.sum(axis=2)
    return safe_divide(2 * np.diagonal(counts, axis1=1, axis2=2), whole), whole > 0


def _positive_class(case: LabelInputs) -> str:
    if case.positive is None:
        raise UserError(f"f1 is that of one class, and here are {len(case.labels)} ({', '.join(case.labels[:8])}"
                        f"{', ...' if len(case.labels) > 8 else ''}); choose macro_f1 or micro_f1.")
    return case.positive


def _sorted_labels(labels: Iterable[str]) -> list[str]:
    """Numbers by their size, everything else by spelling: the order in which training numbers its classes."""
    try:
        return sorted(labels, key=lambda label: (float(label), label))
    except ValueError:
        return sorted(labels)


ACCURACY = mean_metric("accuracy", "labels", "share of examples with the right label", is_correct)
METRICS = (
    ACCURACY,
    Metric("f1", "labels", "F1 of the positive class", positive_f1, bootstrap_f1, requires="sklearn.metrics"),
    Metric("macro_f1", "labels", "mean F1 of the classes that occur", macro_f1, bootstrap_macro_f1,
           requires="sklearn.metrics"),
    mean_metric("micro_f1", "labels", "F1 over all decisions; with one label an example, the accuracy", is_correct),
    Metric("matthews", "labels", "Matthews' correlation of labels", matthews, bootstrap_matthews,
           requires="sklearn.metrics"),
)
