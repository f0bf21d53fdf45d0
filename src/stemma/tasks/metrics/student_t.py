"""Quantiles of Student's t distribution, for confidence intervals of a mean over few samples.

The distribution function has a closed form for integer degrees of freedom (Abramowitz and Stegun 1964, 26.7.3 and
26.7.4); its inverse is found numerically.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

NORMAL_QUANTILE = 1.959963985  # the 97.5% quantile: a two-sided 95% interval
MAX_EXACT_FREEDOM = 200  # larger degrees of freedom use this one: 1.972 instead of 1.960


def two_sided_p(t: float, freedom: int) -> float:
    """The probability that |T| exceeds t."""
    freedom = min(freedom, MAX_EXACT_FREEDOM)
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for power in range(odd, freedom - 1, 2):  # powers of the cosine: 1, 3, ... or 0, 2, ... up to freedom - 2
        total += term
        term *= square * (power + 1) / (power + 2)
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, 1 - inside))


@lru_cache(maxsize=4096)
def student_t(freedom: int, alpha: float = 0.05) -> float:
    """The t that |T| exceeds with probability `alpha`; by default the 95% half-width in standard errors."""
    def excess(log_t: float) -> float:
        return math.log(max(two_sided_p(math.exp(log_t), freedom), 1e-300) / alpha)

    return math.exp(find_root(excess, -12.0, 12.0 if freedom > 1 else 30.0))


def find_root(decreasing: Callable[[float], float], low: float, high: float) -> float:
    """The zero of a decreasing function in [low, high], by regula falsi with the Illinois rule."""
    at_low, at_high = decreasing(low), decreasing(high)
    if at_low <= 0 or at_high >= 0:
        return low if at_low <= 0 else high
    for _ in range(60):
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        at_middle = decreasing(middle)
        if abs(at_middle) < 1e-9 or high - low < 1e-12:
            return middle
        if at_middle > 0:
            low, at_low, at_high = middle, at_middle, at_high / 2
        else:
            high, at_high, at_low = middle, at_middle, at_low / 2
    return middle
