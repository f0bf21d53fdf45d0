"""Whether two recipes differ, or were only lucky: differences paired by seed and by text, with a t interval.

Both sides of a pair began with the same seed and were asked the same documents, so whatever makes a seed or a document
hard for both cancels. Two things are left to chance: the seeds, and the texts (or examples) of a measure that adds up
over them. Each has a standard error of its own with a t of its own degrees of freedom, and the interval takes the root
of the sum of both squares: with one of them zero that is the ordinary t interval, otherwise it is a little wide (never
too narrow: tests simulate the error rate at two, three and five seeds).

Several comparisons by one measure are corrected by Holm's procedure (1979): the probability of even one false alarm
among them is at most 5%. What is not significant is *equivalent* only if the whole interval lies within a stated
margin; otherwise it is *inconclusive*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stemma.lab.experiment import Score
from stemma.tasks.metrics.student_t import find_root, student_t, two_sided_p

ALPHA = 0.05  # probability of a false alarm
POWER = 0.84  # standard errors to spare, with which four of five repetitions find what is there
MIN_STANDARD_ERROR = 1e-12  # p-value that is told from 0
MAX_SEEDS_NEEDED = 100  # seeds that anyone would train


@dataclass(frozen=True)
class Difference:
    """How much higher the second side is than the first."""

    mean: float
    low: float | None  # the 95% interval; None: one seed says nothing about another
    high: float | None
    verdict: str  # of the second side: better, worse; equivalent, inconclusive; one seed; same bytes
    seeds: int
    p: float | None = None  # of a difference at least as large by chance, after the correction
    comparisons: int = 1  # for which it is corrected
    margin: float | None = None  # within which both sides count as equivalent
    seed_error: float = 0.0  # standard error of the mean over the seeds
    text_error: float = 0.0  # and over the texts
    texts: int = 0
    needed: int | None = None  # seeds in all that would probably decide it; None: it is decided, or seeds do not help
    note: str | None = None  # what else explains it

    def half_width(self, alpha: float = ALPHA, seeds: int | None = None) -> float:
        """Of the interval that leaves out `share`, with these seeds or with another number of like ones."""
        count = seeds or self.seeds
        by_seed = student_t(count - 1, alpha) * self.seed_error * math.sqrt(self.seeds / count)
        by_text = student_t(self.texts - 1, alpha) * self.text_error if self.texts > 1 else 0.0
        return math.hypot(by_seed, by_text)


def sample_std(values: Sequence[float]) -> float | None:
    """The sample standard deviation; a single value has none."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def paired_difference(a: Sequence[Score], b: Sequence[Score], higher_is_better: bool, *, identical: bool = False,
               margin: float | None = None) -> Difference:
    """Of b from a, paired by position: equal positions are equal seeds. `higher` is better; `same`: both sides are one
    and the same model, byte by byte, and there is nothing to find out."""
    assert len(a) == len(b) > 0, "a difference is paired by seed"
    seeds = len(a)
    each = np.array([second.value - first.value for first, second in zip(a, b, strict=True)])
    mean = float(each.mean())
    if identical:
        return Difference(mean, mean, mean, "same bytes", seeds)
    if seeds == 1:
        return Difference(mean, None, None, "one seed", 1)
    text_error, texts = _text_standard_error(a, b)
    found = Difference(mean, None, None, "", seeds, None, 1, margin, float(each.std(ddof=1)) / math.sqrt(seeds),
                       text_error, texts)
    half = found.half_width()
    return holm_corrected([replace(found, low=mean - half, high=mean + half, p=_p_value(found))], higher_is_better)[0]


def holm_corrected(differences: Sequence[Difference], higher_is_better: bool) -> list[Difference]:
    """The same differences with the verdicts that all of them together allow (Holm 1979)."""
    tested = sorted((one for one in differences if one.p is not None), key=lambda one: one.p or 0.0)
    count, largest = len(tested), 0.0
    together: dict[int, Difference] = {}
    for rank, one in enumerate(tested):
        assert one.p is not None
        largest = max(largest, min(1.0, (count - rank) * one.p))
        together[id(one)] = _with_verdict(replace(one, p=largest, comparisons=count), higher_is_better)
    return [together.get(id(one), one) for one in differences]


def _with_verdict(difference: Difference, higher_is_better: bool) -> Difference:
    assert difference.p is not None
    if difference.p <= ALPHA:
        return replace(difference, verdict="better" if (difference.mean > 0) == higher_is_better else "worse")
    if difference.margin is not None and abs(difference.mean) + difference.half_width(ALPHA
        / difference.comparisons) <= difference.margin:
        return replace(difference, verdict="equivalent")
    return replace(difference, verdict="inconclusive", needed=_seeds_needed(difference))


def _seeds_needed(difference: Difference) -> int | None:
    """How many seeds would probably decide it, were the difference and its spread what they seem to be here."""
    share = ALPHA / difference.comparisons
    for seeds in range(difference.seeds + 1, MAX_SEEDS_NEEDED + 1):
        half = difference.half_width(share, seeds)
        spare = POWER * math.hypot(difference.seed_error * math.sqrt(difference.seeds / seeds), difference.text_error)
        if abs(difference.mean) > half + spare or difference.margin is not None and abs(difference.mean) + half + spare <= difference.margin:
            return seeds
    return None


def _p_value(difference: Difference) -> float:
    """The share that an interval leaves out when it just reaches 0."""
    if not difference.mean:
        return 1.0
    if not difference.text_error:
        return two_sided_p(difference.mean / difference.seed_error, difference.seeds
                           - 1) if difference.seed_error else MIN_STANDARD_ERROR
    return math.exp(find_root(lambda share: math.log(max(difference.half_width(math.exp(share)),
                                                         1e-300) / abs(difference.mean)),
                         math.log(MIN_STANDARD_ERROR), 0.0))


def _text_standard_error(a: Sequence[Score], b: Sequence[Score]) -> tuple[float, int]:
    """The standard error of the mean difference over texts, and their number; none where some cell has no parts, or
    other ones than the rest.

    A value is a ratio of sums over texts, so each text moves it by what it has above the ratio, over the sum below (the
    delta method).
    """
    cells = (*a, *b)
    if len({len(score.parts) for score in cells}) > 1 or not cells[0].parts:
        return 0.0, 0
    parts = np.array([score.parts for score in cells], np.float64).reshape(2, len(a), -1, 2)
    parts = parts[:, :, parts.any((0, 1, 3))]  # an empty text is no text
    texts = parts.shape[2]
    above, below = parts[..., 0], parts[..., 1]
    total = below.sum(-1, keepdims=True)  # (2, seeds, 1)
    if texts < 2 or not total.all():
        return 0.0, 0
    ratio = above.sum(-1, keepdims=True) / total
    values = np.array([score.value for score in cells]).reshape(2, len(a), 1)
    scale = np.divide(values, ratio, out=np.ones_like(ratio), where=ratio != 0)  # accuracy in percent, say
    moves = (scale * (above - ratio * below) / total).mean(1)  # (2, texts)
    return float(math.sqrt(texts / (texts - 1) * ((moves[1] - moves[0]) ** 2).sum())), texts
