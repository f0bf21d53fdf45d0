"""Muon as its authors print it (kellerjordan.github.io/posts/muon), one matrix, in double precision."""

import numpy as np


def newton_schulz(matrix, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = np.array(matrix, dtype=np.float64)
    x = x / max(np.sqrt((x**2).sum()), 1e-7)
    if matrix.shape[0] > matrix.shape[1]:
        x = x.T
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def muon(weight, gradients, rate, momentum=0.95, nesterov=True, steps=5, decay=0.0, scale="original", parts=1):
    """The weight after one step for each gradient; it consists of `parts` matrices, stacked along the rows."""
    x = np.array(weight, dtype=np.float64)
    m = np.zeros_like(x)
    for g in gradients:
        g = np.array(g, dtype=np.float64)
        m = momentum * m + (1 - momentum) * g
        update = (1 - momentum) * g + momentum * m if nesterov else m
        x = x * (1 - rate * decay)
        moved = []
        for weights, direction in zip(np.split(x, parts), np.split(update, parts), strict=True):
            rows, columns = weights.shape
            factor = np.sqrt(max(1, rows / columns)) if scale == "original" else 0.2 * np.sqrt(max(rows, columns))
            moved.append(weights - rate * factor * newton_schulz(direction, steps))
        x = np.concatenate(moved)
    return x
