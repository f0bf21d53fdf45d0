"""StableAdamW, line by line as algorithm 2 of arXiv:2304.13013, in double precision, one tensor.

Two things are optimi's: no update is divided by less than epsilon, and the clipped rate also decays the weight.
"""

import numpy as np


def stable_adamw(weight, gradients, rate, beta1, beta2, epsilon, decay):
    """The weight after one step for each gradient."""
    x = np.array(weight, dtype=np.float64)
    v = np.zeros_like(x)
    u = np.zeros_like(x)
    for t, g in enumerate(gradients, start=1):
        g = np.array(g, dtype=np.float64)
        beta1_hat = beta1 * (1 - beta1 ** (t - 1)) / (1 - beta1**t)
        beta2_hat = beta2 * (1 - beta2 ** (t - 1)) / (1 - beta2**t)
        v = beta1_hat * v + (1 - beta1_hat) * g
        u = beta2_hat * u + (1 - beta2_hat) * g**2
        rms = np.sqrt(np.mean(g**2 / np.maximum(u, epsilon**2)))
        clipped = rate / max(1, rms)
        x = x - clipped * decay * x - clipped * v / (np.sqrt(u) + epsilon)
    return x
