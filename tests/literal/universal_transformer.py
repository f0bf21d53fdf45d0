"""The Universal Transformer of arXiv:1807.03819, one sequence, step by step and place by place.

Section 2.1, equations 4 and 5: at every step t the same block is applied to what the last step left plus a signal:
    A = Norm(X + SelfAttention(X)),  H = Norm(A + Transition(A))  with  X = H of the last step + P^t.
The pre-norm variant, as the released code (tensor2tensor) can be set, is A = X + SelfAttention(Norm(X)),
H = A + Transition(Norm(A)), and one norm more on the final output.

The model is an encoder-decoder. The decoder's block has one sublayer more, between the two others: attention from its
states to the encoder's final output, which is the same at every step ("the final output of the encoder"), with the
queries of the decoder. Its self-attention is masked; it is trained with its input shifted to the right by one position.
Both sides have their own block, and halt by themselves.

Weights are one dictionary of tensors for each side; matrices are (out, in), so y = W x:
    query, key, value, output  (width, width), and each with its _bias
    inner (inner, width), outer (width, inner), and each with its _bias     if the transition is a feed-forward
    depth1 (width, 3), point1 (inner, width), point1_bias,                  if it is a separable convolution;
    depth2 (inner, 5), point2 (width, inner), point2_bias                   depth[channel, k] is a channel's kernel
    attention_norm, transition_norm (width,), and each with its _bias; also final_norm if pre-norm
    cross_query, cross_key, cross_value, cross_output (width, width), each with its _bias, and cross_norm: a decoder
    halt (width,), halt_bias ()                                             if halting is adaptive

The convolutional transition is tensor2tensor's: each of the two convolutions is one kernel for each channel (3 places
wide, then 5), a mixture of the channels with a bias, and ReLU only after the first. In an encoder the kernel is centred
on the place; in a decoder it ends at the place, so nothing later is seen. Places outside the sequence count as zeros.

Halting is the listing of appendix C, which is `universal_transformer_act` of tensor2tensor. The probability of a step
is read from the state that *enters* it (in tensor2tensor with the signals; the listing leaves signals out). What it
does with a place that has halted: its share of the *output* stops (weight 0 keeps the blend as it is), but its *state*
goes on being transformed at every step while anyone still runs, and the others attend to these further transformed
states. The text of section 2.2 says otherwise: the state of a halted place is copied unchanged to the next steps, and
the last states, not a blend, are the output.
Three more things follow from the listing:
- the next step starts from the transformed state, never from the blend; the blend is only the output;
- the blend is transformed * w + previous * (1 - w), starting at zeros: not Graves' sum of states weighted by w
  (arXiv:1603.08983), so earlier steps fade and the weights do not add up to 1;
- a place that reaches the step limit without halting gets no remainder: its last weight is its p, its remainder is 0.
The loop ends when no place is both below the threshold and below the limit. That only saves work: a halted place's
output and counts no longer change, so sequences of a batch, or padding, cannot lengthen each other's answer.
The ponder cost of a place is n_updates + remainder.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Weights = dict[str, Tensor]
Sees = Callable[[int, int], bool]  # may the query at this place look at the key at that place?


def signal(place: int, step: int, width: int, dtype: torch.dtype) -> Tensor:
    """P^t_i, equations 6 and 7: sinusoids of the place plus sinusoids of the step, sine and cosine by turns."""
    columns = []
    for column in range(width):
        wave, frequency = (math.cos if column % 2 else math.sin), 10_000 ** (-(column - column % 2) / width)
        columns.append(wave(place * frequency) + wave(step * frequency))
    return torch.tensor(columns, dtype=dtype)


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    return weights[name] @ x + weights[f"{name}_bias"]


def norm(x: Tensor, weights: Weights, name: str, epsilon: float) -> Tensor:
    centred = x - x.mean()
    return centred / torch.sqrt((centred**2).mean() + epsilon) * weights[name] + weights[f"{name}_bias"]


def attention(x: list[Tensor], looked_at: list[Tensor], weights: Weights, heads: int, sees: Sees,
              prefix: str = "") -> list[Tensor]:
    """Equations 1 to 3: softmax(Q K^T / sqrt(head width)) V in each head."""
    query = [linear(each, weights, f"{prefix}query") for each in x]
    key, value = ([linear(each, weights, prefix + name) for each in looked_at] for name in ("key", "value"))
    size = len(query[0]) // heads
    result = []
    for i in range(len(x)):
        parts = []
        for head in range(heads):
            columns = slice(head * size, (head + 1) * size)
            seen = [j for j in range(len(looked_at)) if sees(i, j)]
            scores = torch.stack([query[i][columns] @ key[j][columns] / math.sqrt(size) for j in seen])
            shares = torch.softmax(scores, dim=0)
            parts.append(sum(share * value[j][columns] for share, j in zip(shares, seen, strict=True)))
        result.append(linear(torch.cat(parts), weights, f"{prefix}output"))
    return result


def feedforward(x: list[Tensor], weights: Weights) -> list[Tensor]:
    return [linear(torch.relu(linear(each, weights, "inner")), weights, "outer") for each in x]


def separable_convolution(x: list[Tensor], weights: Weights, number: int, causal: bool) -> list[Tensor]:
    depth = weights[f"depth{number}"]
    kernel = depth.shape[1]
    before = kernel - 1 if causal else kernel // 2  # how far to the left of the place the kernel begins
    result = []
    for i in range(len(x)):
        gathered = torch.zeros_like(x[i])
        for k in range(kernel):
            j = i - before + k
            if 0 <= j < len(x):
                gathered = gathered + depth[:, k] * x[j]
        result.append(linear(gathered, weights, f"point{number}"))
    return result


def block(x: list[Tensor], weights: Weights, heads: int, sees: Sees, causal: bool, pre: bool, epsilon: float,
          encoded: list[Tensor] | None) -> list[Tensor]:
    def transition(y: list[Tensor]) -> list[Tensor]:
        if "inner" in weights:
            return feedforward(y, weights)
        hidden = [torch.relu(each) for each in separable_convolution(y, weights, 1, causal)]
        return separable_convolution(hidden, weights, 2, causal)

    def sublayer(y: list[Tensor], function: Callable[[list[Tensor]], list[Tensor]], name: str) -> list[Tensor]:
        if pre:
            changed = function([norm(each, weights, name, epsilon) for each in y])
            return [old + new for old, new in zip(y, changed, strict=True)]
        return [norm(old + new, weights, name, epsilon) for old, new in zip(y, function(y), strict=True)]

    a = sublayer(x, lambda y: attention(y, y, weights, heads, sees), "attention_norm")
    if encoded is not None:
        a = sublayer(a, lambda y: attention(y, encoded, weights, heads, lambda i, j: True, "cross_"), "cross_norm")
    return sublayer(a, transition, "transition_norm")


def signalled(state: list[Tensor], step: int, first: int) -> list[Tensor]:
    """`step` counts from 0; the paper numbers places and steps from 1 (`first`), the released code from 0."""
    return [each + signal(first + i, first + step, len(each), each.dtype) for i, each in enumerate(state)]


def fixed(x: Tensor, weights: Weights, heads: int, steps: int, sees: Sees, causal: bool = False, pre: bool = False,
          epsilon: float = 1e-5, first: int = 0, encoded: list[Tensor] | None = None) -> Tensor:
    """(L, width) -> (L, width): the same number of steps at every place. `causal` concerns the convolution alone.
    `encoded`: the encoder's final output, which a decoder attends to."""
    state = list(x)
    for step in range(steps):
        state = block(signalled(state, step, first), weights, heads, sees, causal, pre, epsilon, encoded)
    return torch.stack([norm(each, weights, "final_norm", epsilon) for each in state] if pre else state)


def adaptive(x: Tensor, weights: Weights, heads: int, maximum: int, threshold: float, sees: Sees, causal: bool = False,
             pre: bool = False, epsilon: float = 1e-5, first: int = 0, encoded: list[Tensor] | None = None
             ) -> tuple[Tensor, list[int], list[Tensor]]:
    """(L, width) -> the output (L, width), and for each place its number of updates and its remainder."""
    length = len(x)
    state = list(x)
    output = [torch.zeros_like(each) for each in state]
    zero = torch.zeros((), dtype=x.dtype)
    probability, remainder, updates = [zero] * length, [zero] * length, [0] * length
    step = 0
    while any(probability[i] < threshold and updates[i] < maximum for i in range(length)):
        entering = signalled(state, step, first)
        transformed = block(entering, weights, heads, sees, causal, pre, epsilon, encoded)
        for i in range(length):
            if probability[i] >= 1:  # halted at an earlier step
                continue
            p = torch.sigmoid(weights["halt"] @ entering[i] + weights["halt_bias"])
            if probability[i] + p > threshold:  # halts now, with what is left of 1
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
    return torch.stack([norm(each, weights, "final_norm", epsilon) for each in output] if pre else output), \
        updates, remainder
