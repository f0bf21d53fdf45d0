"""Scaling laws: loss as a power law of parameters, tokens or FLOPs, with an optional floor (irreducible loss).

The law is y = floor + factor * x^-exponent (Kaplan et al. 2020, arXiv:2001.08361, without a floor; Hoffmann et al.
2022, arXiv:2203.15556, with one). On log-log axes a law without a floor is a straight line. A floor is fitted only if
there are enough points and the BIC strongly favours it, because noise can look like a floor.

The band is a bootstrap over seeds: all points of a seed are resampled together, because they are correlated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stemma.lab.results_data import FitEntry, LawEntry
from stemma.tasks.metrics.student_t import student_t

Point = tuple[float, float, int]  # x, y, seed
MIN_POINTS, MIN_POINTS_FOR_FLOOR = 3, 4  # different x
# By how much the BIC must favour a floor: "strong" evidence (Kass and Raftery 1995).
BIC_MARGIN = 6.0
EXPONENTS = np.geomspace(0.01, 4.0, 800)  # grid for a law with a floor; factor and floor follow from the exponent
BAND_POINTS = 40
CURVE = "validation_loss"


@dataclass(frozen=True)
class _PowerLaw:
    """One law per bootstrap sample, as arrays of equal length. x is divided by `unit`, so that no power overflows."""

    unit: float
    exponent: NDArray[np.float64]
    coefficient: NDArray[np.float64]
    irreducible_loss: NDArray[np.float64]

    def __call__(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """(draws, len(x))"""
        return self.irreducible_loss[:, None] + self.coefficient[:, None] * (x / self.unit) ** -self.exponent[:, None]


# Arguments: x, y and (draws, points) counts, how often each bootstrap sample contains each point.
Fit = Callable[[np.ndarray, np.ndarray, np.ndarray], _PowerLaw]


def power_law(points: Sequence[Point], draws: int = 500, seed: int = 0) -> LawEntry | None:
    """The fitted law as an entry of results.json; None if there are fewer than three different x, or values that are
    not positive."""
    usable = len({x for x, _, _ in points}) >= MIN_POINTS and all(x > 0 and y > 0 for x, y, _ in points)
    if not usable:
        return None
    x, y = np.array([point[:2] for point in points], np.float64).T
    fit, floored = _select_model(x, y)
    law = fit(x, y, np.ones((1, len(x))))
    factor = float(law.coefficient[0] * law.unit ** law.exponent[0])
    entry: LawEntry = {
        "points": [list(point) for point in points], "factor": factor, "exponent": float(law.exponent[0]),
        "floor": float(law.irreducible_loss[0]) if floored else None, "exponent_low": None, "exponent_high": None,
        "band": []}
    seeds = sorted({point_seed for _, _, point_seed in points})
    if len(seeds) == 1:
        return entry
    seed_index = np.array([seeds.index(point_seed) for _, _, point_seed in points])
    counts = np.random.default_rng(seed).multinomial(len(seeds), [1 / len(seeds)] * len(seeds), draws)[:, seed_index]
    same_x = x[:, None] == np.unique(x)
    # a bootstrap sample may have too few different x, because a seed may lack some of the sizes
    enough = (counts @ same_x > 0).sum(1) >= (MIN_POINTS_FOR_FLOOR if floored else MIN_POINTS)
    drawn = fit(x, y, counts[enough].astype(np.float64))
    grid = np.geomspace(x.min(), x.max(), BAND_POINTS)
    center = np.log(law(grid)[0])
    low, high = np.exp(_band(np.log(drawn(grid)), center, len(seeds)))
    exponent_low, exponent_high = _band(drawn.exponent, law.exponent[0], len(seeds))
    return {**entry, "exponent_low": max(0.0, float(exponent_low)) if floored else float(exponent_low),
            "exponent_high": float(exponent_high), "band": np.stack([grid, low, np.exp(center), high], 1).tolist()}


def fit_all(rows: Sequence[Mapping[str, Any]], measure: str) -> list[FitEntry]:
    """All laws that can be fitted, by recipe. A row is a run: recipe, size, seed, parameters, tokens, flops, y (the
    metric), curve (tokens, flops, seconds, validation loss) and warmup_tokens; earlier points are not used."""
    entries: list[FitEntry] = []
    for recipe in dict.fromkeys(row["recipe"] for row in rows):
        runs = [row for row in rows if row["recipe"] == recipe]
        largest = max(row["parameters"] for row in runs)
        several = len({row["parameters"] for row in runs}) > 1
        of_largest = ", of the largest size" if several else ""
        on_frontier = ", on the compute frontier" if several else ""
        caveat = "the loss is that of the recipe's own objective and not comparable with another recipe's."
        laws = [
            ("parameters", measure, [(row["parameters"], row["y"], row["seed"]) for row in runs],
             "Each point is a run; all had the same budget."),
            ("tokens", CURVE,
             [point for row in runs if row["parameters"] == largest for point in _curve_points(row, 0)],
             f"Points of the learning curves after the warm-up{of_largest}; {caveat}"),
            ("flops", CURVE, _frontier([point for row in runs for point in _curve_points(row, 1)]),
             f"Points of the learning curves after the warm-up{on_frontier}; {caveat}")]
        for x, metric, points, note in laws:
            law = power_law(points)
            if law is not None:
                entries.append({"recipe": recipe, "x": x, **law, "measure": metric, "note": note})
    return entries


def _curve_points(row: Mapping[str, Any], column: int) -> list[Point]:
    return [(point[column], point[3], row["seed"]) for point in row["curve"] if point[0] > row["warmup_tokens"]]


def _frontier(points: Sequence[Point]) -> list[Point]:
    """The compute frontier: points with a lower loss than all cheaper points of the same seed."""
    best: dict[int, float] = {}
    frontier = []
    for x, y, seed in sorted(points):
        if y < best.get(seed, math.inf):
            best[seed] = y
            frontier.append((x, y, seed))
    return frontier


def _select_model(x: np.ndarray, y: np.ndarray) -> tuple[Fit, bool]:
    """The fit function to use, and whether it has a floor."""
    if len(np.unique(x)) >= MIN_POINTS_FOR_FLOOR:
        weights = np.ones((1, len(x)))
        error_without, error_with = (float(((np.log(fit(x, y, weights)(x)[0]) - np.log(y)) ** 2).sum()) + 1e-12 * len(x)
                                     for fit in (_fit_log_linear, _fit_with_floor))
        if len(x) * math.log(error_without / error_with) - math.log(len(x)) > BIC_MARGIN:
            return _fit_with_floor, True
    return _fit_log_linear, False


def _fit_log_linear(x: np.ndarray, y: np.ndarray, counts: np.ndarray) -> _PowerLaw:
    """Linear regression of log y on log x."""
    unit = math.exp(float(np.log(x).mean()))
    log_x, log_y = np.log(x / unit), np.log(y)
    total = counts.sum(1)
    mean_x, mean_y = counts @ log_x / total, counts @ log_y / total
    slope = (counts @ (log_x * log_y) / total - mean_x * mean_y) / (counts @ log_x**2 / total - mean_x**2)
    return _PowerLaw(unit, -slope, np.exp(mean_y - slope * mean_x), np.zeros_like(slope))


def _fit_with_floor(x: np.ndarray, y: np.ndarray, counts: np.ndarray) -> _PowerLaw:
    """Least squares of relative errors: for each exponent of a grid, floor and factor by non-negative linear
    regression; the best exponent is taken."""
    unit = math.exp(float(np.log(x).mean()))
    basis = (x[:, None] / unit) ** -EXPONENTS  # (points, exponents)
    weight = counts / y**2
    ones, ys = weight.sum(1)[:, None], (weight @ y)[:, None]
    b, bb, by = weight @ basis, weight @ basis**2, weight @ (basis * y[:, None])  # (draws, exponents)
    factor = np.maximum((ones * by - b * ys) / (ones * bb - b**2), 0.0)
    floor = (ys - factor * b) / ones
    factor, floor = np.where(floor < 0, by / bb, factor), np.maximum(floor, 0.0)
    error = factor**2 * bb + floor**2 * ones + 2 * (factor * floor * b - factor * by - floor * ys)
    draw, best = np.arange(len(counts)), error.argmin(1)
    return _PowerLaw(unit, EXPONENTS[best], factor[draw, best], floor[draw, best])


def _band(drawn: np.ndarray, center: object, seeds: int) -> np.ndarray:
    """(2, ...) interval from the bootstrap samples along the first axis: their standard deviation times the t quantile.
    Three seeds give only ten different samples, too few for quantiles."""
    half = math.sqrt(seeds / (seeds - 1)) * student_t(seeds - 1) * drawn.std(0)
    return np.stack([center - half, center + half])
