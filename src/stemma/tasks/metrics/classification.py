"""Classification metrics: accuracy, and F1 and Matthews correlation by scikit-learn.

With two classes, `f1` is that of the positive class: "1" if there is such a label, else the last, as in GLUE. Over all
classes, `macro_f1` is the mean of the F1 per class; `micro_f1` weights examples equally and equals accuracy for
single-label data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stemma.errors import UserError
from stemma.tasks.metrics.metric import Metric, mean_metric, safe_divide


@dataclass(frozen=True)
class LabelInputs:
    gold: list[str]
    predicted: list[str]
    labels: list[str]
    positive: str | None  # None: more than two classes and none was named


def metric_inputs(gold: Sequence[Any], predicted: Sequence[Any], *, labels: Sequence[str] | None = None,
                  positive: str | None = None) -> LabelInputs:
    """`labels` are the classes in order (default: those that occur); a prediction may lie outside them."""
    gold_labels, predicted_labels = [str(label) for label in gold], [str(label) for label in predicted]
    classes = [str(label) for label in labels or ()]
    classes += _sorted_labels({*gold_labels, *predicted_labels}.difference(classes))
    if positive is not None and positive not in classes:
        raise UserError(f'no label "{positive}" that could be the positive one; the labels are {", ".join(classes)}.')
    if positive is None and len(classes) <= 2:
        positive = "1" if "1" in classes else classes[-1]
    return LabelInputs(gold_labels, predicted_labels, classes, positive)


def confusion(gold: Sequence[object], predicted: Sequence[object],
              labels: Sequence[str] | None = None) -> dict[str, Any]:
    """{"labels": [...], "counts": [[...]]}: rows are gold labels, columns are predictions."""
    inputs = metric_inputs(gold, predicted, labels=labels)
    return {"labels": inputs.labels, "counts": confusion_counts(inputs).tolist()}


def is_correct(inputs: LabelInputs) -> np.ndarray:
    return np.array([gold == predicted for gold, predicted in zip(inputs.gold, inputs.predicted, strict=True)],
                    dtype=np.float64)


def positive_f1(inputs: LabelInputs) -> float:
    from sklearn.metrics import f1_score  # on first use: it is slow to import

    positive = _positive_class(inputs)
    return float(f1_score(inputs.gold, inputs.predicted, labels=[positive], average="macro", zero_division=0))


def macro_f1(inputs: LabelInputs) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(inputs.gold, inputs.predicted, average="macro", zero_division=0))


def matthews(inputs: LabelInputs) -> float:
    if len({*inputs.gold, *inputs.predicted}) == 1:  # scikit-learn returns 0 too, with a warning
        return 0.0
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(inputs.gold, inputs.predicted))


def confusion_counts(inputs: LabelInputs) -> np.ndarray:
    """Counts of (gold, predicted)."""
    index = {label: i for i, label in enumerate(inputs.labels)}
    counts = np.zeros((len(index), len(index)), dtype=np.int64)
    np.add.at(counts, ([index[label] for label in inputs.gold], [index[label] for label in inputs.predicted]), 1)
    return counts


def bootstrap_counts(inputs: LabelInputs, rng: np.random.Generator, rounds: int) -> np.ndarray:
    """(rounds, labels, labels) confusion counts. Resampled examples fall into the cells by a multinomial distribution,
    so the cells are sampled instead of the examples."""
    counts = confusion_counts(inputs)
    total = int(counts.sum())
    return rng.multinomial(total, counts.ravel() / total, size=rounds).reshape(rounds, *counts.shape)


def bootstrap_f1(inputs: LabelInputs, rng: np.random.Generator, rounds: int) -> np.ndarray:
    index = inputs.labels.index(_positive_class(inputs))
    return _f1_per_class(bootstrap_counts(inputs, rng, rounds))[0][:, index]


def bootstrap_macro_f1(inputs: LabelInputs, rng: np.random.Generator, rounds: int) -> np.ndarray:
    scores, occurs = _f1_per_class(bootstrap_counts(inputs, rng, rounds))
    mean: np.ndarray = scores.sum(axis=1) / occurs.sum(axis=1)  # a class without samples in a round has no F1
    return mean


def bootstrap_matthews(inputs: LabelInputs, rng: np.random.Generator, rounds: int) -> np.ndarray:
    """The multi-class correlation (Gorodkin, 2004), as in scikit-learn."""
    counts = bootstrap_counts(inputs, rng, rounds).astype(np.float64)
    total, correct = float(len(inputs.gold)), np.trace(counts, axis1=1, axis2=2)
    gold, predicted = counts.sum(axis=2), counts.sum(axis=1)
    variance = (total ** 2 - (gold ** 2).sum(axis=1)) * (total ** 2 - (predicted ** 2).sum(axis=1))
    covariance = correct * total - (gold * predicted).sum(axis=1)
    return safe_divide(covariance, np.sqrt(variance))


def _f1_per_class(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, labels) F1 of each class, and whether the class occurs."""
    denominator = counts.sum(axis=1) + counts.sum(axis=2)
    return safe_divide(2 * np.diagonal(counts, axis1=1, axis2=2), denominator), denominator > 0


def _positive_class(inputs: LabelInputs) -> str:
    if inputs.positive is None:
        raise UserError(f"f1 is that of one class, and here are {len(inputs.labels)} ({', '.join(inputs.labels[:8])}"
                        f"{', ...' if len(inputs.labels) > 8 else ''}); choose macro_f1 or micro_f1.")
    return inputs.positive


def _sorted_labels(labels: Iterable[str]) -> list[str]:
    """Numbers in numeric order, everything else alphabetically: the order of class ids in training."""
    try:
        return sorted(labels, key=lambda label: (float(label), label))
    except ValueError:
        return sorted(labels)


ACCURACY = mean_metric("accuracy", "labels", "fraction of examples with the correct label", is_correct)
METRICS = (
    ACCURACY,
    Metric("f1", "labels", "F1 of the positive class", positive_f1, bootstrap_f1),
    Metric("macro_f1", "labels", "mean F1 of the classes that occur", macro_f1, bootstrap_macro_f1),
    mean_metric("micro_f1", "labels", "F1 over all decisions; equals accuracy for single-label data", is_correct),
    Metric("matthews", "labels", "Matthews correlation of labels", matthews, bootstrap_matthews),
)
