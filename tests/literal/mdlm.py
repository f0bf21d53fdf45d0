"""MDLM (arXiv:2406.07524) as the paper defines it, for one sequence, position by position and head by head.

    embedding    x = E[token]
    attention    x + drop(output(attended)),  queries and keys rotated by position / base^(2i / head width), where
                 dimension i of the first half of a head is paired with dimension i of the second
    feed-forward x + drop(outer gelu_tanh(inner norm(x)))
    output       W norm(x);  both sublayers read norm(x), with a weight and a bias

The network gets no time, so the paper's scales, shifts and gates are constants, part of the norms and of the output
projections. SUBS (section 3.2.3): the mask token has probability 0; tokens that are not masked are kept.

Loss (equation 10 with the log-linear schedule, alpha = 1 - t, so that alpha' / (1 - alpha) = -1 / t): a row with rate t
costs 1 / t times the sum of -log p(token) over its masked tokens. The sum over rows is divided by the number of tokens
that could have been masked.

Bound of a text of n tokens: the same, as a mean over all rates and all sets of masked tokens. The integral over t of
t^m (1 - t)^(n - m) / t, times the number of sets of m tokens, is 1 / m: every m from 1 to n has the weight 1 / m, and
all sets of m tokens are equally likely.

Dropout masks are the next of `masks`: for each layer the attention branch and the feed-forward branch.
Weights: tokens, output_matrix, output_bias (vocabulary, ...); N.query, N.key, N.value, N.output, N.inner, N.outer with
N.inner_bias, N.outer_bias; N.norm1, N.norm2, norm with _bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import combinations

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + epsilon) * weight + bias


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def rotate(vector: Tensor, position: int, base: float) -> Tensor:
    half = len(vector) // 2
    rotated = list(vector)
    for i in range(half):
        angle = position / base ** (2 * i / len(vector))
        rotated[i] = vector[i] * math.cos(angle) - vector[half + i] * math.sin(angle)
        rotated[half + i] = vector[half + i] * math.cos(angle) + vector[i] * math.sin(angle)
    return torch.stack(rotated)


def logits(weights: Weights, layers: int, heads: int, base: float, epsilon: float, tokens: list[int],
           masks: list[Tensor] | None = None) -> Tensor:
    """(length, vocabulary)"""
    order: Iterator[Tensor] = iter(masks or [])

    def drop(x: Tensor) -> Tensor:
        return x if masks is None else x * next(order)

    x = torch.stack([weights["tokens"][token] for token in tokens])
    for layer in range(layers):
        part = {name.removeprefix(f"{layer}."): value for name, value in weights.items()
                if name.startswith(f"{layer}.")}
        inside = norm(x, part["norm1"], part["norm1_bias"], epsilon)
        x = x + drop(attention(part, heads, base, inside))
        inside = norm(x, part["norm2"], part["norm2_bias"], epsilon)
        inner = gelu_tanh(inside @ part["inner"].T + part["inner_bias"])
        x = x + drop(inner @ part["outer"].T + part["outer_bias"])
    return norm(x, weights["norm"], weights["norm_bias"], epsilon) @ weights["output_matrix"].T + weights["output_bias"]


def attention(part: Weights, heads: int, base: float, x: Tensor) -> Tensor:
    query, key, value = (x @ part[name].T for name in ("query", "key", "value"))
    width, attended = query.shape[1] // heads, []
    for head in range(heads):
        columns = slice(head * width, (head + 1) * width)
        queries, keys = ([rotate(vector[columns], position, base) for position, vector in enumerate(vectors)]
                         for vectors in (query, key))
        scores = torch.stack([torch.stack([q @ k / math.sqrt(width) for k in keys]) for q in queries])
        attended.append(scores.softmax(-1) @ value[:, columns])
    return torch.cat(attended, 1) @ part["output"].T


def log_probability(scores: Tensor, token: int, mask_token: int) -> Tensor:
    """SUBS: of the (vocabulary,) logits the mask token has none."""
    others = torch.cat([scores[:mask_token], scores[mask_token + 1:]])
    return scores[token] - torch.log(torch.exp(others).sum())


def row_cost(scores: Tensor, tokens: list[int], masked: list[int], rate: float, mask_token: int) -> Tensor:
    """1 / t times the sum of -log p over the masked positions; `scores` (length, vocabulary) of the masked row."""
    total = torch.zeros((), dtype=scores.dtype)
    for position in masked:
        total = total - log_probability(scores[position], tokens[position], mask_token)
    return total / rate


def bound(predict: Callable[[list[int]], Tensor], tokens: list[int], first: int, count: int, mask_token: int) -> float:
    """The bound of `count` tokens from position `first`; `predict` gives the (length, vocabulary) logits of a row."""
    total = 0.0
    for size in range(1, count + 1):
        sets = list(combinations(range(first, first + count), size))
        for chosen in sets:
            row = [mask_token if position in chosen else token for position, token in enumerate(tokens)]
            scores = predict(row)
            for position in chosen:
                cost = -float(log_probability(scores[position], tokens[position], mask_token))
                total += cost / size / len(sets)
    return total
