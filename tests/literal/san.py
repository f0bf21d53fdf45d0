"""The answer module for pairs of arXiv:1901.11504, section 3 ("Pairwise Text Classification Output"), which is that of
arXiv:1804.07888: one pair, element by element.

    s^0 = sum_j alpha_j M^h_j,             alpha_j = exp(w1 . M^h_j) / sum_i exp(w1 . M^h_i)
    x   = sum_j beta_j M^p_j,              beta    = softmax(s W2^T M^p)
    s^k = GRU(s^(k-1), x)
    P^k = softmax(W3 [s; x; |s - x|; s . x])
    P   = mean of P^0 ... P^(K-1); in training, some of them are dropped before the mean

M^p and M^h are the hidden states of the premise (the first text) and of the hypothesis (the second). The paper does not
say which x belongs to s^0. In the authors' code (namisan/mt-dnn, module/san.py) each state first computes its x, then
predicts from both, and then the GRU updates the state with that x: K predictions and K - 1 updates. A dropped
prediction is left out of the mean: the code scales the others up, which the softmax of its loss cancels.

The GRU is torch's: the weights of its gates are stacked as reset, update, new.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Vector = list[float]


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def times(matrix: Sequence[Sequence[float]], vector: Vector, bias: Sequence[float] | None = None) -> Vector:
    return [dot(row, vector) + (bias[index] if bias is not None else 0.0) for index, row in enumerate(matrix)]


def softmax(scores: Vector) -> Vector:
    powers = [math.exp(score) for score in scores]
    return [power / sum(powers) for power in powers]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def weighted(memory: Sequence[Vector], weights: Vector) -> Vector:
    return [sum(weight * state[i] for weight, state in zip(weights, memory, strict=True))
            for i in range(len(memory[0]))]


def gru(x: Vector, state: Vector, weights: Mapping[str, list]) -> Vector:
    width = len(state)
    input_gates = times(weights["renewal.weight_ih"], x, weights["renewal.bias_ih"])
    state_gates = times(weights["renewal.weight_hh"], state, weights["renewal.bias_hh"])
    new_state = []
    for i in range(width):
        reset = sigmoid(input_gates[i] + state_gates[i])
        update = sigmoid(input_gates[width + i] + state_gates[width + i])
        new = math.tanh(input_gates[2 * width + i] + reset * state_gates[2 * width + i])
        new_state.append((1 - update) * new + update * state[i])
    return new_state


def guesses(premise: Sequence[Vector], hypothesis: Sequence[Vector], weights: Mapping[str, list],
            steps: int) -> list[Vector]:
    """P^0 ... P^(K-1): the prediction of each step."""
    summary = weights["summary.weight"][0]
    state = weighted(hypothesis, softmax([dot(summary, state_vector) for state_vector in hypothesis]))
    predictions = []
    for _ in range(steps):
        query = times(weights["query.weight"], state)
        context = weighted(premise, softmax([dot(query, state_vector) for state_vector in premise]))
        features = [*state, *context, *(abs(s - x) for s, x in zip(state, context, strict=True)),
                    *(s * x for s, x in zip(state, context, strict=True))]
        predictions.append(softmax(times(weights["output.weight"], features, weights["output.bias"])))
        state = gru(context, state, weights)
    return predictions


def mean(predictions: Sequence[Vector], steps: Sequence[int]) -> Vector:
    return [sum(predictions[step][label] for step in steps) / len(steps) for label in range(len(predictions[0]))]
