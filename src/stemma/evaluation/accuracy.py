"""How sure a share of right answers is, and what a reader without a model would reach."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


def wilson_interval(num_correct: int, count: int, z: float = 1.959963985) -> tuple[float, float]:
    """The 95% interval of a share (Wilson, 1927): honest for few examples and for shares near 0 and 1."""
    if not count:
        return 0.0, 1.0
    share, spread = num_correct / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread * spread / 4) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def majority_baseline(labels: Sequence[str]) -> float:
    """The share that always saying the most frequent label gets right."""
    return Counter(labels).most_common(1)[0][1] / len(labels)


def label_macro_f1(labels: Sequence[str], predicted: Sequence[str]) -> float:
    """The mean over the labels that occur of each one's F1."""
    pairs = Counter(zip(labels, predicted, strict=True))
    said, true = Counter(predicted), Counter(labels)
    return sum(2 * pairs[label, label] / (said[label] + true[label]) for label in true) / len(true)
