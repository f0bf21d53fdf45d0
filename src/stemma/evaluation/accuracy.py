"""Accuracy: its confidence interval, the majority baseline, and macro F1."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


def wilson_interval(num_correct: float, count: int, z: float = 1.959963985) -> tuple[float, float]:
    """The 95% interval of a proportion (Wilson, 1927). It also holds for few examples and proportions near 0 and 1."""
    if not count:
        return 0.0, 1.0
    proportion, z2 = num_correct / count, z * z / count
    middle = (proportion + z2 / 2) / (1 + z2)
    half = math.sqrt(proportion * (1 - proportion) * z2 + z2 * z2 / 4) / (1 + z2)
    return max(0.0, middle - half), min(1.0, middle + half)


def majority_baseline(labels: Sequence[str]) -> float:
    """The accuracy of always predicting the most frequent label."""
    return Counter(labels).most_common(1)[0][1] / len(labels)


def label_macro_f1(labels: Sequence[str], predicted: Sequence[str]) -> float:
    """The mean F1 over the labels that occur."""
    pairs = Counter(zip(labels, predicted, strict=True))
    predicted_counts, gold_counts = Counter(predicted), Counter(labels)
    return sum(2 * pairs[label, label] / (predicted_counts[label] + count)
               for label, count in gold_counts.items()) / len(gold_counts)
