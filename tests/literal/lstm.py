"""Recurrent and windowed language models, one row, position by position, in double precision.

- LSTM (Hochreiter & Schmidhuber 1997) with a projection (arXiv:1402.1128) and clipping as in TensorFlow's LSTMCell
- AWD-LSTM (arXiv:1708.02182, section 4): which values its masks multiply, and its two penalties (arXiv:1708.01009)
- NNLM (Bengio et al. 2003, section 2): y = b + W x + U tanh(d + H x)

Every dropout mask is an argument: zeros and 1 / (1 - p), or ones.

Weights of a layer: input (4 x cells, in), recurrent (4 x cells, out), bias (4 x cells,), in the order of the gates
input, forget, candidate, output; projection (out, cells) if there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def cell(x: Tensor, output: Tensor, memory: Tensor, weights: Weights, weight_mask: Tensor | None = None,
         cell_clip: float | None = None, projection_clip: float | None = None) -> tuple[Tensor, Tensor]:
    """One step: (output, cell) after reading x."""
    size = len(memory)
    recurrent = weights["recurrent"] if weight_mask is None else weights["recurrent"] * weight_mask
    rows = [slice(gate * size, (gate + 1) * size) for gate in range(4)]
    write, forget, candidate, expose = (
        weights["input"][gate] @ x + recurrent[gate] @ output + weights["bias"][gate] for gate in rows)
    memory = torch.sigmoid(forget) * memory + torch.sigmoid(write) * torch.tanh(candidate)
    if cell_clip is not None:
        memory = memory.clamp(-cell_clip, cell_clip)
    output = torch.sigmoid(expose) * torch.tanh(memory)
    if "projection" in weights:
        output = weights["projection"] @ output
        if projection_clip is not None:
            output = output.clamp(-projection_clip, projection_clip)
    return output, memory


def layer(xs: list[Tensor], output: Tensor, memory: Tensor, weights: Weights, reverse: bool = False,
          **options: Any) -> tuple[list[Tensor], Tensor, Tensor]:
    """The outputs in the order of the text, and the state after the last token that is read."""
    outputs: list[Tensor] = []
    for x in reversed(xs) if reverse else xs:
        output, memory = cell(x, output, memory, weights, **options)
        outputs.append(output)
    return outputs[::-1] if reverse else outputs, output, memory


@dataclass
class Masks:
    """Of one row: a factor for each word of the vocabulary; of each embedding, the same at all positions; of each
    layer's hidden-to-hidden matrix; of the output of all layers but the last; of the output of the last."""

    word: Tensor
    embedding: Tensor
    weights: list[Tensor]
    hidden: list[Tensor]
    output: Tensor


def awd_lstm(ids: list[int], labels: list[int], embedding: Tensor, bias: Tensor, layers: list[Weights],
             states: list[tuple[Tensor, Tensor]], masks: Masks, alpha: float, beta: float
             ) -> tuple[Tensor, Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
    """(sum of the losses, mean square of the last dropped outputs x alpha, that of their undropped changes x beta,
    states)"""
    xs = [embedding[token] * masks.word[token] * masks.embedding for token in ids]
    new_states = []
    for index, (weights, (output, memory)) in enumerate(zip(layers, states, strict=True)):
        ys, output, memory = layer(xs, output, memory, weights, weight_mask=masks.weights[index])
        new_states.append((output, memory))
        xs = ys if index == len(layers) - 1 else [y * masks.hidden[index] for y in ys]
    dropped = [y * masks.output for y in xs]
    loss = sum((-(embedding @ y + bias).log_softmax(0)[label] for y, label in zip(dropped, labels, strict=True)),
               torch.zeros((), dtype=bias.dtype))
    activation = sum((number**2 for y in dropped for number in y), torch.zeros(())) / (len(ids) * len(dropped[0]))
    changes = [later - earlier for earlier, later in zip(xs, xs[1:], strict=False)]
    temporal = sum((number**2 for y in changes for number in y), torch.zeros(())) / (len(changes) * len(xs[0]))
    return loss, alpha * activation, beta * temporal, new_states


def nnlm(ids: list[int], order: int, embedding: Tensor, hidden: Tensor, hidden_bias: Tensor, output: Tensor,
         direct: Tensor | None, bias: Tensor) -> list[Tensor]:
    """The logits of the token after each position; words before the first are zero vectors."""
    logits = []
    for position in range(len(ids)):
        context = [embedding[ids[earlier]] if earlier >= 0 else torch.zeros_like(embedding[0])
                   for earlier in range(position - order + 2, position + 1)]
        x = torch.cat(context)
        y = bias + output @ torch.tanh(hidden_bias + hidden @ x)
        logits.append(y if direct is None else y + direct @ x)
    return logits
