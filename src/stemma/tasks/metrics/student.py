"""How far a mean of few numbers may be off: 95% of Student's t, which a spread estimated from so little needs."""

from __future__ import annotations

NORMAL = 1.959963985  # 97.5% of a normal distribution lie below; an interval leaves out as much on either side
# The same of Student's t with 1, 2, 3... degrees of freedom (Abramowitz and Stegun 1964, table 26.10).
STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)


def student(freedom: int) -> float:
    """97.5% of Student's t lie below."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    z = NORMAL  # from ten on a series is right to three digits behind the point (Abramowitz and Stegun 1964, 26.7.5)
    return (z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
            + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3))
