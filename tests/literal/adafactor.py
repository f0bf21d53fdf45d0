"""Adafactor, line by line as algorithms 4 and 5 of arXiv:1804.04235 print it: slow, in double precision, one tensor.

The relative step size rho is given, as in T5; sums are sums, as in the paper (an implementation may take means).
"""

import numpy as np


def rms(x):
    return np.sqrt((x**2).mean())


def adafactor(weight, gradients, rho, beta2_decay, epsilon1, epsilon2, d):
    """The weight after one step for each gradient."""
    x = np.array(weight, dtype=np.float64)
    rows, columns, v = np.zeros(x.shape[0]), np.zeros(x.shape[-1]), np.zeros_like(x)
    for t, g in enumerate(gradients, start=1):
        g = np.array(g, dtype=np.float64)
        alpha = max(epsilon2, rms(x)) * rho
        beta = 1 - t**-beta2_decay
        squared = g**2 + epsilon1
        if x.ndim == 2:
            rows = beta * rows + (1 - beta) * squared.sum(axis=1)
            columns = beta * columns + (1 - beta) * squared.sum(axis=0)
            v_hat = np.outer(rows, columns) / rows.sum()
        else:
            v = beta * v + (1 - beta) * squared
            v_hat = v
        u = g / np.sqrt(v_hat)
        u = u / max(1.0, rms(u) / d)
        x = x - alpha * u
    return x
