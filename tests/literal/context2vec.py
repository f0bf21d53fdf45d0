"""context2vec (CoNLL 2016) as its released code has it, one sentence, one word and one step at a time.

The sentence stands between a token for its beginning and one for its end. The context of a word is the state of one
LSTM after the words before it, beside the state of another after the words behind it in reversed order; each has its
own word vectors. Two layers with a ReLU between them join both.

Weights: words.0, words.1 (vocabulary, n); of the LSTM d: d.input (4 hidden, n), d.recurrent (4 hidden, hidden), d.bias,
gates input, forget, candidate, output; join, join_bias, output, output_bias; targets (vocabulary, width). y = W x.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def states(tokens: Sequence[int], weights: Weights, direction: int) -> list[Tensor]:
    """The state after each token."""
    recurrent = weights[f"{direction}.recurrent"]
    output = cell = torch.zeros(recurrent.shape[1], dtype=recurrent.dtype)
    after = []
    for token in tokens:
        word = weights[f"words.{direction}"][token]
        gates = weights[f"{direction}.input"] @ word + recurrent @ output + weights[f"{direction}.bias"]
        enter, forget, candidate, leave = gates.chunk(4)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
        output = torch.sigmoid(leave) * torch.tanh(cell)
        after.append(output)
    return after


def contexts(sentence: Sequence[int], begin: int, end: int, weights: Weights) -> list[Tensor]:
    """The vector of each word's context."""
    before = states([begin, *sentence[:-1]], weights, 0)
    behind = states([end, *sentence[:0:-1]], weights, 1)[::-1]
    vectors = []
    for left, right in zip(before, behind, strict=True):
        hidden = (weights["join"] @ torch.cat([left, right]) + weights["join_bias"]).relu()
        vectors.append(weights["output"] @ hidden + weights["output_bias"])
    return vectors


def loss(context: Tensor, word: int, drawn: Sequence[int], weights: Weights) -> Tensor:
    total = -torch.log(torch.sigmoid(weights["targets"][word] @ context))
    for other in drawn:
        total = total - torch.log(torch.sigmoid(-(weights["targets"][other] @ context)))
    return total
