"""The Universal Transformer of arXiv:1807.03819, one sequence, step by step and position by position.

Section 2.1, equations 4 and 5: at every step t the same block is applied to the last step's output plus a signal:
    A = Norm(X + SelfAttention(X)),  H = Norm(A + Transition(A))  with  X = H of the last step + P^t.
The pre-norm variant of the released code (tensor2tensor) is A = X + SelfAttention(Norm(X)),
H = A + Transition(Norm(A)), with a norm on the final output.

The model is an encoder-decoder. The decoder's block has one more sublayer, between the two others: cross-attention to
the encoder's final output, which is the same at every step ("the final output of the encoder"). Its self-attention is
causal, and its input is shifted to the right by one position. Encoder and decoder have their own blocks, and halt
independently.

Weights are one dictionary of tensors for each of the two; matrices are (out, in), so y = W x:
    query, key, value, output  (width, width), and each with its _bias
    inner (inner, width), outer (width, inner), and each with its _bias     if the transition is a feed-forward
    depth1 (width, 3), point1 (inner, width), point1_bias,                  if it is a separable convolution;
    depth2 (inner, 5), point2 (width, inner), point2_bias                   depth[channel, k] is a channel's kernel
    attention_norm, transition_norm (width,), and each with its _bias; also final_norm if pre-norm
    cross_query, cross_key, cross_value, cross_output (width, width), each with its _bias, and cross_norm: a decoder
    halt (width,), halt_bias ()                                             if halting is adaptive

The convolutional transition is tensor2tensor's. Each of the two separable convolutions is a kernel for each channel (of
width 3, then 5) and a linear layer over the channels; ReLU follows only the first. In an encoder the kernel is centred
on the position; in a decoder it ends there, so it is causal. Positions outside the sequence are zeros.

Halting is the listing of appendix C, which is `universal_transformer_act` of tensor2tensor. The halting probability is
computed from the state that *enters* a step (in tensor2tensor with the signals; the listing leaves them out). After a
position has halted, its *output* no longer changes (its weight is 0), but its *state* is transformed at every further
step, and the other positions attend to it. Section 2.2 differs: there the state of a halted position is copied
unchanged to the next steps, and the last states, not an average, are the output.
Three more properties follow from the listing:
- the next step starts from the transformed state, never from the average, which is only the output;
- the average is transformed * w + previous * (1 - w), starting at zeros. It is not Graves' sum of states weighted by w
  (arXiv:1603.08983): earlier steps fade, and the weights do not add up to 1;
- a position that reaches the step limit without halting has no remainder: its last weight is its p.
The loop ends when no position is both below the threshold and below the limit. That only saves work: the output and
counts of a halted position no longer change, so other sequences of a batch, or padding, do not affect them.
The ponder cost of a position is n_updates + remainder.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Weights = dict[str, Tensor]
AttentionRule = Callable[[int, int], bool]  # (query position, key position) -> whether the query attends to the key


def signal(position: int, step: int, width: int, dtype: torch.dtype) -> Tensor:
    """P^t_i, equations 6 and 7: sinusoids of the position plus those of the step, sine and cosine interleaved."""
    columns = []
    for column in range(width):
        function, frequency = (math.cos if column % 2 else math.sin), 10_000 ** (-(column - column % 2) / width)
        columns.append(function(position * frequency) + function(step * frequency))
    return torch.tensor(columns, dtype=dtype)


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    return weights[name] @ x + weights[f"{name}_bias"]


def norm(x: Tensor, weights: Weights, name: str, epsilon: float) -> Tensor:
    centred = x - x.mean()
    return centred / torch.sqrt((centred**2).mean() + epsilon) * weights[name] + weights[f"{name}_bias"]


def attention(x: list[Tensor], keys_input: list[Tensor], weights: Weights, heads: int, sees: AttentionRule,
              prefix: str = "") -> list[Tensor]:
    """Equations 1 to 3: softmax(Q K^T / sqrt(head width)) V in each head."""
    query = [linear(state, weights, f"{prefix}query") for state in x]
    key, value = ([linear(state, weights, prefix + name) for state in keys_input] for name in ("key", "value"))
    size = len(query[0]) // heads
    result = []
    for i in range(len(x)):
        parts = []
        for head in range(heads):
            columns = slice(head * size, (head + 1) * size)
            attended = [j for j in range(len(keys_input)) if sees(i, j)]
            scores = torch.stack([query[i][columns] @ key[j][columns] / math.sqrt(size) for j in attended])
            probabilities = torch.softmax(scores, dim=0)
            parts.append(sum(probability * value[j][columns]
                             for probability, j in zip(probabilities, attended, strict=True)))
        result.append(linear(torch.cat(parts), weights, f"{prefix}output"))
    return result


def feedforward(x: list[Tensor], weights: Weights) -> list[Tensor]:
    return [linear(torch.relu(linear(state, weights, "inner")), weights, "outer") for state in x]


def separable_convolution(x: list[Tensor], weights: Weights, index: int, causal: bool) -> list[Tensor]:
    depth = weights[f"depth{index}"]
    kernel = depth.shape[1]
    left_context = kernel - 1 if causal else kernel // 2  # positions of the kernel to the left of position i
    result = []
    for i in range(len(x)):
        depthwise = torch.zeros_like(x[i])
        for k in range(kernel):
            j = i - left_context + k
            if 0 <= j < len(x):
                depthwise = depthwise + depth[:, k] * x[j]
        result.append(linear(depthwise, weights, f"point{index}"))
    return result


def block(x: list[Tensor], weights: Weights, heads: int, sees: AttentionRule, causal: bool, pre: bool, epsilon: float,
          encoded: list[Tensor] | None) -> list[Tensor]:
    def transition(y: list[Tensor]) -> list[Tensor]:
        if "inner" in weights:
            return feedforward(y, weights)
        hidden = [torch.relu(state) for state in separable_convolution(y, weights, 1, causal)]
        return separable_convolution(hidden, weights, 2, causal)

    def sublayer(y: list[Tensor], function: Callable[[list[Tensor]], list[Tensor]], name: str) -> list[Tensor]:
        if pre:
            added = function([norm(state, weights, name, epsilon) for state in y])
            return [old + new for old, new in zip(y, added, strict=True)]
        return [norm(old + new, weights, name, epsilon) for old, new in zip(y, function(y), strict=True)]

    a = sublayer(x, lambda y: attention(y, y, weights, heads, sees), "attention_norm")
    if encoded is not None:
        a = sublayer(a, lambda y: attention(y, encoded, weights, heads, lambda i, j: True, "cross_"), "cross_norm")
    return sublayer(a, transition, "transition_norm")


def with_signals(state: list[Tensor], step: int, first: int) -> list[Tensor]:
    """`step` counts from 0. `first`: the paper numbers positions and steps from 1, the released code from 0."""
    return [vector + signal(first + i, first + step, len(vector), vector.dtype) for i, vector in enumerate(state)]


def fixed(x: Tensor, weights: Weights, heads: int, steps: int, sees: AttentionRule, causal: bool = False,
          pre: bool = False, epsilon: float = 1e-5, first: int = 0, encoded: list[Tensor] | None = None) -> Tensor:
    """(L, width) -> (L, width): the same number of steps at every position. `causal` is for the convolution only.
    `encoded`: the encoder's final output, which a decoder attends to."""
    state = list(x)
    for step in range(steps):
        state = block(with_signals(state, step, first), weights, heads, sees, causal, pre, epsilon, encoded)
    return torch.stack([norm(vector, weights, "final_norm", epsilon) for vector in state] if pre else state)


def adaptive(x: Tensor, weights: Weights, heads: int, maximum: int, threshold: float, sees: AttentionRule,
             causal: bool = False, pre: bool = False, epsilon: float = 1e-5, first: int = 0,
             encoded: list[Tensor] | None = None) -> tuple[Tensor, list[int], list[Tensor]]:
    """(L, width) -> the output (L, width), and for each position its number of updates and its remainder."""
    length = len(x)
    state = list(x)
    output = [torch.zeros_like(vector) for vector in state]
    zero = torch.zeros((), dtype=x.dtype)
    probability, remainder, updates = [zero] * length, [zero] * length, [0] * length
    step = 0
    while any(probability[i] < threshold and updates[i] < maximum for i in range(length)):
        entering = with_signals(state, step, first)
        transformed = block(entering, weights, heads, sees, causal, pre, epsilon, encoded)
        for i in range(length):
            if probability[i] >= 1:  # halted at an earlier step
                continue
            p = torch.sigmoid(weights["halt"] @ entering[i] + weights["halt_bias"])
            if probability[i] + p > threshold:  # halts now, with the remainder to 1
                remainder[i] = 1 - probability[i]
                probability[i] = probability[i] + remainder[i]
                weight = remainder[i]
            else:
                probability[i] = probability[i] + p
                weight = p
            updates[i] += 1
            output[i] = transformed[i] * weight + output[i] * (1 - weight)
        state = transformed
        step += 1
    return torch.stack([norm(vector, weights, "final_norm", epsilon) for vector in output] if pre else output), \
        updates, remainder
