"""Which stage paid off: the same task learnt from the model of every stage, by the same seeds, and compared.

Differences are taken seed by seed, so that what a seed does to both sides cancels out. A stage paid off where the 95%
interval of the mean difference (by Student's t: with three seeds 4.3 standard errors) leaves out 0; with a single seed
nothing is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from stemma.tasks.metrics.student_t import student_t


def stage_gains(scores: Mapping[str, Sequence[float]], higher_is_better: bool = True) -> list[dict[str, Any]]:
    """`scores` by the stage that was started from, in order, one for each seed; each against the stage before it."""
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
    return "paid off" if gain > 0 else "did harm"


def _sample_std(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None


def _standard_error(values: Sequence[float]) -> float | None:
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
