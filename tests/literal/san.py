"""The answer module for pairs of arXiv:1901.11504, section 3 ("Pairwise Text Classification Output"), which is that of
arXiv:1804.07888: one pair, number by number.

    s^0 = sum_j alpha_j M^h_j,             alpha_j = exp(w1 . M^h_j) / sum_i exp(w1 . M^h_i)
    x   = sum_j beta_j M^p_j,              beta    = softmax(s W2^T M^p)
    s^k = GRU(s^(k-1), x)
    P^k = softmax(W3 [s; x; |s - x|; s . x])
    P   = mean of P^0 ... P^(K-1); while learning, some of them are dropped before the mean

M^p and M^h are the hidden vectors of the premise (the first text) and of the hypothesis (the second). The paper leaves
open what x belongs to s^0; in the authors' code (namisan/mt-dnn, module/san.py) each state first looks for its own x,
guesses from both, and only then is renewed by that x, so that there are K guesses and K - 1 renewals. A dropped guess
is left out of the mean: the code scales the others up, which its loss, a softmax over logs, divides out again.

The GRU is torch's: three gates whose weights lie below each other as reset, update, new.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Vector = list[float]


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def times(matrix: Sequence[Sequence[float]], vector: Vector, bias: Sequence[float] | None = None) -> Vector:
    return [dot(row, vector) + (bias[number] if bias is not None else 0.0) for number, row in enumerate(matrix)]


def softmax(scores: Vector) -> Vector:
    powers = [math.exp(score) for score in scores]
    return [power / sum(powers) for power in powers]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def weighted(memory: Sequence[Vector], weights: Vector) -> Vector:
    return [sum(weight * place[n] for weight, place in zip(weights, memory, strict=True))
            for n in range(len(memory[0]))]


def gru(x: Vector, state: Vector, weights: Mapping[str, list]) -> Vector:
    width = len(state)
    coming = times(weights["renewal.weight_ih"], x, weights["renewal.bias_ih"])
    kept = times(weights["renewal.weight_hh"], state, weights["renewal.bias_hh"])
    renewed = []
    for n in range(width):
        reset = sigmoid(coming[n] + kept[n])
        update = sigmoid(coming[width + n] + kept[width + n])
        new = math.tanh(coming[2 * width + n] + reset * kept[2 * width + n])
        renewed.append((1 - update) * new + update * state[n])
    return renewed


def guesses(premise: Sequence[Vector], hypothesis: Sequence[Vector], weights: Mapping[str, list],
            steps: int) -> list[Vector]:
    """P^0 ... P^(K-1)"""
    state = weighted(hypothesis, softmax([dot(weights["summary.weight"][0], place) for place in hypothesis]))
    made = []
    for _ in range(steps):
        asked = times(weights["query.weight"], state)
        found = weighted(premise, softmax([dot(asked, place) for place in premise]))
        told = [*state, *found, *(abs(s - x) for s, x in zip(state, found, strict=True)),
                *(s * x for s, x in zip(state, found, strict=True))]
        made.append(softmax(times(weights["output.weight"], told, weights["output.bias"])))
        state = gru(found, state, weights)
    return made


def mean(made: Sequence[Vector], kept: Sequence[int]) -> Vector:
    return [sum(made[step][label] for step in kept) / len(kept) for label in range(len(made[0]))]
