"""Whether two recipes differ, or were only lucky: differences paired by seed and by text, with a bootstrap interval.

Both sides of a pair began with the same seed and were asked the same documents, so whatever makes a seed or a document
hard for both cancels. Seeds are drawn with replacement, and of a measure that adds up over documents or examples those
too: the recipe that wins must win on other seeds and on other texts.

A bootstrap of a few numbers is too narrow: it divides by n where it should by n - 1, and knows nothing of the t that a
spread estimated from so little calls for. Its deviations are widened by just that much (Hesterberg 2015, "What teachers
should know about the bootstrap", arXiv:1411.5279: expanded intervals), those of the seeds by their number and those of
the texts by theirs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stemma.lab.experiment import Score
from stemma.tasks.metrics.student import NORMAL, student

CHUNK = 1 << 21  # numbers drawn at a time


@dataclass(frozen=True)
class Difference:
    """How much higher the second side is than the first."""

    mean: float
    low: float | None  # the 95% interval; None: one seed says nothing about another
    high: float | None
    verdict: str  # of the second side: better, worse; noise: 0 lies in the interval; one seed; same bytes
    seeds: int


def spread(values: Sequence[float]) -> float | None:
    """The sample standard deviation; a single value has none."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def difference(a: Sequence[Score], b: Sequence[Score], higher: bool, draws: int = 2000, seed: int = 0,
               same: bool = False) -> Difference:
    """Of b from a, paired by place: equal places are equal seeds. `higher` is better; `same`: both sides are one and
    the same model, byte by byte, and there is nothing to find out."""
    assert len(a) == len(b) > 0, "a difference is paired by seed"
    seeds = len(a)
    each = np.array([second.value - first.value for first, second in zip(a, b, strict=True)])
    mean = float(each.mean())
    if same:
        return Difference(mean, mean, mean, "same bytes", seeds)
    if seeds == 1:
        return Difference(mean, None, None, "one seed", 1)
    rng = np.random.default_rng(seed)
    chosen = _counts(rng, draws, seeds) / seeds
    if (sides := _sides(a, b)) is None:
        away = widening(seeds) * (chosen @ each - mean)
    else:
        drawn = _differences(rng, draws, *sides)  # (draws, seeds): of each seed, on texts that were drawn
        of_texts = drawn.mean(1)
        away = (widening(seeds) * ((chosen * drawn).sum(1) - of_texts)
                + widening(sides[0].shape[-1]) * (of_texts - mean))
    low, high = (mean + float(value) for value in np.quantile(away, (0.025, 0.975)))
    verdict = "noise" if low <= 0 <= high else "better" if (mean > 0) == higher else "worse"
    return Difference(mean, low, high, verdict, seeds)


def widening(count: int) -> float:
    """By how much the deviations of a bootstrap of so many are too small; one cannot be drawn in another way."""
    return math.sqrt(count / (count - 1)) * student(count - 1) / NORMAL if count > 1 else 1.0


def _sides(a: Sequence[Score], b: Sequence[Score]) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """(2, seeds, units) above and below, and (2, seeds) what their ratio is multiplied by; None where some cell has no
    parts, or other ones than the rest."""
    cells = (*a, *b)
    if len({len(score.parts) for score in cells}) > 1 or not cells[0].parts:
        return None
    parts = np.array([score.parts for score in cells], np.float64).reshape(2, len(a), -1, 2)
    parts = parts[:, :, parts.any((0, 1, 3))]  # an empty text is no text
    if not parts.size:
        return None
    above, below = parts[..., 0], parts[..., 1]
    values = np.array([score.value for score in cells]).reshape(2, len(a))
    return above, below, values / _ratio(above.sum(-1), below.sum(-1), otherwise=1.0)


def _differences(rng: np.random.Generator, draws: int, above: np.ndarray, below: np.ndarray,
                 scale: np.ndarray) -> np.ndarray:
    """(draws, seeds): b - a of every seed, each time with other units, which are the same for all seeds and sides."""
    units = above.shape[-1]
    found = []
    for start in range(0, draws, rows := max(1, CHUNK // units)):
        counts = _counts(rng, min(rows, draws - start), units)
        ratios = scale[..., None] * _ratio(above @ counts.T, below @ counts.T)  # (2, seeds, rows)
        found.append((ratios[1] - ratios[0]).T)
    return np.concatenate(found)


def _counts(rng: np.random.Generator, draws: int, count: int) -> np.ndarray:
    """(draws, count): how often each was drawn, of `count` draws with replacement."""
    drawn = rng.integers(count, size=(draws, count)) + count * np.arange(draws)[:, None]
    return np.bincount(drawn.ravel(), minlength=draws * count).reshape(draws, count).astype(np.float64)


def _ratio(above: np.ndarray, below: np.ndarray, otherwise: float = 0.0) -> np.ndarray:
    """`otherwise` where it is 0, or 0 of 0."""
    found = np.divide(above, below, out=np.zeros_like(above), where=below != 0)
    return np.where(found == 0, otherwise, found)
