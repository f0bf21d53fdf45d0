"""LAMB, line by line as algorithm 2 of arXiv:1904.00962 prints it: slow, in double precision, one tensor."""

import numpy as np


def lamb(weight, gradients, rate, beta1, beta2, epsilon, decay):
    """The weight after one step for each gradient."""
    x = np.array(weight, dtype=np.float64)
    m = np.zeros_like(x)
    v = np.zeros_like(x)
    for t, g in enumerate(gradients, start=1):
        g = np.array(g, dtype=np.float64)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat = m / (1 - beta1**t)
        v_hat = v / (1 - beta2**t)
        r = m_hat / (np.sqrt(v_hat) + epsilon)
        direction = r + decay * x
        size, length = np.sqrt((x**2).sum()), np.sqrt((direction**2).sum())
        ratio = size / length if size > 0 and length > 0 else 1.0
        x = x - rate * ratio * direction
    return x
