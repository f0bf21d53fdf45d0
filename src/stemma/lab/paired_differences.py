"""Significance of the difference between two recipes: paired by seed and by text, with a t interval.

Both sides of a pair have the same seed and the same documents, so common effects of a seed or a document cancel. Two
sources of variance remain: the seeds, and the texts (or examples) of a metric that is a sum over them. Each has its own
standard error and degrees of freedom; the half-width of the interval is the root of the sum of both squares. With one
of them zero this is the ordinary t interval, otherwise it is slightly conservative (tests simulate the error rate at
two, three and five seeds).

Comparisons by one metric are corrected by Holm's procedure (1979): the family-wise error rate is at most 5%. A
difference that is not significant is *equivalent* if the whole interval is within a margin, and otherwise
*inconclusive*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stemma.lab.experiment import Score
from stemma.tasks.metrics.student_t import find_root, student_t, two_sided_p

ALPHA = 0.05  # significance level
POWER = 0.84  # standard errors: the normal quantile for a power of 80%
MIN_P_VALUE = 1e-12  # smallest p-value
MAX_SEEDS_NEEDED = 100  # more seeds are not suggested


@dataclass(frozen=True)
class Difference:
    """How much higher the second side is than the first."""

    mean: float
    low: float | None  # the 95% interval; None for one seed
    high: float | None
    verdict: str  # of the second side: better, worse; equivalent, inconclusive; one seed; same bytes
    seeds: int
    p: float | None = None  # corrected p-value
    comparisons: int = 1  # number of comparisons in the correction
    margin: float | None = None  # within which both sides count as equivalent
    seed_error: float = 0.0  # standard error over the seeds
    text_error: float = 0.0  # standard error over the texts
    texts: int = 0
    needed: int | None = None  # total seeds that would probably decide it; None: decided, or seeds do not help
    note: str | None = None  # another explanation

    def half_width(self, alpha: float = ALPHA, seeds: int | None = None) -> float:
        """Half-width of the interval at level `alpha`, with these seeds or extrapolated to another number."""
        count = seeds or self.seeds
        by_seed = student_t(count - 1, alpha) * self.seed_error * math.sqrt(self.seeds / count)
        by_text = student_t(self.texts - 1, alpha) * self.text_error if self.texts > 1 else 0.0
        return math.hypot(by_seed, by_text)


def sample_std(values: Sequence[float]) -> float | None:
    """The sample standard deviation; None for a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def paired_difference(a: Sequence[Score], b: Sequence[Score], higher_is_better: bool, *, identical: bool = False,
                      margin: float | None = None) -> Difference:
    """b minus a, paired by index, which is the seed. `identical`: both sides have the same weights, so there is nothing
    to test."""
    assert len(a) == len(b) > 0, "a difference is paired by seed"
    seeds = len(a)
    deltas = np.array([second.value - first.value for first, second in zip(a, b, strict=True)])
    mean = float(deltas.mean())
    if identical:
        return Difference(mean, mean, mean, "same bytes", seeds)
    if seeds == 1:
        return Difference(mean, None, None, "one seed", 1)
    text_error, texts = _text_standard_error(a, b)
    seed_error = float(deltas.std(ddof=1)) / math.sqrt(seeds)
    difference = Difference(mean, None, None, "", seeds, None, 1, margin, seed_error, text_error, texts)
    half = difference.half_width()
    difference = replace(difference, low=mean - half, high=mean + half, p=_p_value(difference))
    return holm_corrected([difference], higher_is_better)[0]


def holm_corrected(differences: Sequence[Difference], higher_is_better: bool) -> list[Difference]:
    """The differences with p-values and verdicts corrected for their number (Holm 1979)."""
    tested = sorted((difference for difference in differences if difference.p is not None),
                    key=lambda difference: difference.p or 0.0)
    count, largest = len(tested), 0.0
    corrected: dict[int, Difference] = {}
    for rank, difference in enumerate(tested):
        assert difference.p is not None
        largest = max(largest, min(1.0, (count - rank) * difference.p))
        corrected[id(difference)] = _with_verdict(replace(difference, p=largest, comparisons=count), higher_is_better)
    return [corrected.get(id(difference), difference) for difference in differences]


def _with_verdict(difference: Difference, higher_is_better: bool) -> Difference:
    assert difference.p is not None
    if difference.p <= ALPHA:
        return replace(difference, verdict="better" if (difference.mean > 0) == higher_is_better else "worse")
    corrected_half = difference.half_width(ALPHA / difference.comparisons)
    if difference.margin is not None and abs(difference.mean) + corrected_half <= difference.margin:
        return replace(difference, verdict="equivalent")
    return replace(difference, verdict="inconclusive", needed=_seeds_needed(difference))


def _seeds_needed(difference: Difference) -> int | None:
    """The number of seeds that would decide it with 80% power, if difference and variance are as measured."""
    alpha, size = ALPHA / difference.comparisons, abs(difference.mean)
    for seeds in range(difference.seeds + 1, MAX_SEEDS_NEEDED + 1):
        error = math.hypot(difference.seed_error * math.sqrt(difference.seeds / seeds), difference.text_error)
        needed = difference.half_width(alpha, seeds) + POWER * error
        if size > needed or difference.margin is not None and size + needed <= difference.margin:
            return seeds
    return None


def _p_value(difference: Difference) -> float:
    """The level alpha at which the interval just reaches 0."""
    if not difference.mean:
        return 1.0
    if not difference.text_error:
        if not difference.seed_error:
            return MIN_P_VALUE
        return two_sided_p(difference.mean / difference.seed_error, difference.seeds - 1)

    def log_ratio(log_alpha: float) -> float:
        return math.log(max(difference.half_width(math.exp(log_alpha)), 1e-300) / abs(difference.mean))

    return math.exp(find_root(log_ratio, math.log(MIN_P_VALUE), 0.0))


def _text_standard_error(a: Sequence[Score], b: Sequence[Score]) -> tuple[float, int]:
    """The standard error of the mean difference over texts, and their number; (0, 0) if the cells have no terms, or
    different numbers of them.

    A value is a ratio of sums over texts. By the delta method a text contributes its numerator minus the ratio times
    its denominator, divided by the sum of denominators.
    """
    cells = (*a, *b)
    if len({len(score.parts) for score in cells}) > 1 or not cells[0].parts:
        return 0.0, 0
    parts = np.array([score.parts for score in cells], np.float64).reshape(2, len(a), -1, 2)
    parts = parts[:, :, parts.any((0, 1, 3))]  # an empty text is no text
    texts = parts.shape[2]
    numerators, denominators = parts[..., 0], parts[..., 1]
    total = denominators.sum(-1, keepdims=True)  # (2, seeds, 1)
    if texts < 2 or not total.all():
        return 0.0, 0
    ratio = numerators.sum(-1, keepdims=True) / total
    values = np.array([score.value for score in cells]).reshape(2, len(a), 1)
    scale = np.divide(values, ratio, out=np.ones_like(ratio), where=ratio != 0)  # 100 for an accuracy in percent
    contributions = (scale * (numerators - ratio * denominators) / total).mean(1)  # (2, texts)
    return float(math.sqrt(texts / (texts - 1) * ((contributions[1] - contributions[0]) ** 2).sum())), texts
