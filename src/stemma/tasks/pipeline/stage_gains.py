"""The gain of each stage: the same task fine-tuned from the model of every stage, with the same seeds, and compared.

Differences are paired by seed, which removes the variance that both sides share. A stage improved the score if the 95%
interval of the mean difference (Student's t: 4.3 standard errors with three seeds) excludes 0. A single seed gives no
interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from stemma.tasks.metrics.student_t import student_t


def stage_gains(scores: Mapping[str, Sequence[float]], higher_is_better: bool = True) -> list[dict[str, Any]]:
    """Compare each stage with the one before it; `scores` holds one score per seed for each start stage, in order."""
    rows: list[dict[str, Any]] = []
    before: Sequence[float] | None = None
    for stage, values in scores.items():
        row = {"from": stage, "scores": list(values), "mean": fmean(values), "spread": _sample_std(values)}
        if before is not None:
            gains = [b - a if higher_is_better else a - b for a, b in zip(before, values, strict=True)]
            row |= {"gain": fmean(gains), "error": _standard_error(gains), "verdict": gain_verdict(gains)}
        rows.append(row)
        before = values
    return rows


def gain_verdict(gains: Sequence[float]) -> str:
    if len(gains) < 2:
        return "one seed: no interval"
    gain, error = fmean(gains), _standard_error(gains) or 0.0
    if abs(gain) <= student_t(len(gains) - 1) * error or gain == 0:
        return "inconclusive"
    return "improved" if gain > 0 else "hurt"


def _sample_std(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None


def _standard_error(values: Sequence[float]) -> float | None:
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
