"""A recurrent translator with attention, sentence by sentence and step by step.

The encoder is a bidirectional LSTM of any number of layers: of RNNsearch (with LSTM cells; arXiv:1409.0473, appendix
A.2) and of CoVe (arXiv:1708.00107, section 3). The decoder is RNNsearch's, or that of Luong et al. (arXiv:1508.04025),
with and without input feeding. Gates are in the order input, forget, candidate, output.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

Cell = tuple[Tensor, Tensor]  # output and cell of one position, (hidden,)


def lstm_step(x: Tensor, state: Cell, weights: Mapping[str, Tensor]) -> Cell:
    """One step of one LSTM layer (Hochreiter & Schmidhuber 1997)."""
    output, cell = state
    hidden = len(cell)
    gates = weights["input"] @ x + weights["recurrent"] @ output + weights["bias"]
    write, forget = torch.sigmoid(gates[:hidden]), torch.sigmoid(gates[hidden:2 * hidden])
    candidate, expose = torch.tanh(gates[2 * hidden:3 * hidden]), torch.sigmoid(gates[3 * hidden:])
    cell = forget * cell + write * candidate
    return expose * torch.tanh(cell), cell


def zeros(weights: Mapping[str, Tensor]) -> Cell:
    hidden = weights["recurrent"].shape[1]
    return torch.zeros(hidden).to(weights["bias"]), torch.zeros(hidden).to(weights["bias"])


def encode(tokens: list[Tensor], layers: list[list[Mapping[str, Tensor]]]) -> tuple[list[list[Tensor]], list[Cell]]:
    """Embedded tokens -> the outputs of each layer, and each layer's last states, directions side by side. `layers`:
    the weights of each direction of each layer."""
    outputs, finals, below = [], [], tokens
    for directions in layers:
        columns, last = [], []
        for index, weights in enumerate(directions):
            state, column = zeros(weights), []
            for x in below if index == 0 else below[::-1]:
                state = lstm_step(x, state, weights)
                column.append(state[0])
            columns.append(column if index == 0 else column[::-1])
            last.append(state)
        below = [torch.cat(parts) for parts in zip(*columns, strict=True)]
        outputs.append(below)
        finals.append((torch.cat([state[0] for state in last]), torch.cat([state[1] for state in last])))
    return outputs, finals


def attend(query: Tensor, source: list[Tensor], score: str, weights: Mapping[str, Tensor]) -> Tensor:
    """The context: the sum of the source states, weighted by the softmax of their scores."""
    scores = []
    for state in source:
        if score == "additive":
            energy = weights["weight"] @ torch.tanh(weights["query.weight"] @ query + weights["key.weight"] @ state
                                                    + weights["key.bias"])
        elif score == "general":
            energy = query @ (weights["key.weight"] @ state)
        else:
            energy = query @ state
        scores.append(energy)
    shares = torch.softmax(torch.stack(scores), 0)
    return sum((share * state for share, state in zip(shares, source, strict=True)), torch.zeros_like(source[0]))


def first_states(source: list[Tensor], maps: list[Mapping[str, Tensor]]) -> list[Cell]:
    """tanh(W h), where h is the backward direction's output at the first word."""
    backward = source[0][len(source[0]) // 2:]
    outputs = [torch.tanh(weights["weight"] @ backward + weights["bias"]) for weights in maps]
    return [(output, torch.zeros_like(output)) for output in outputs]


def decode(tokens: list[Tensor], source: list[Tensor], states: list[Cell], layers: list[Mapping[str, Tensor]],
           attention: Mapping[str, Tensor], readout: Mapping[str, Tensor], *, score: str, feeding: str,
           residual: int = 0) -> list[Tensor]:
    """Embedded target tokens -> the readout of each position, to which the output of the layer `residual` is added."""
    width = len(readout["bias"]) // (2 if feeding == "context" else 1)
    fed, readouts = torch.zeros(width).to(source[0]), []

    for token in tokens:
        before, x = states[-1][0], token
        if feeding == "context":
            context = attend(before, source, score, attention)
            x = torch.cat([token, context])
        elif feeding == "output":
            x = torch.cat([token, fed])
        new_states = []
        for weights, state in zip(layers, states, strict=True):
            new_states.append(lstm_step(x, state, weights))
            x = new_states[-1][0]
        states = new_states
        if feeding == "context":  # maxout over pairs (appendix A.2.2)
            units = readout["weight"] @ torch.cat([context, before, token]) + readout["bias"]
            fed = torch.stack([torch.maximum(units[2 * unit], units[2 * unit + 1]) for unit in range(width)])
        else:
            context = attend(states[-1][0], source, score, attention)
            fed = torch.tanh(readout["weight"] @ torch.cat([context, states[-1][0]]) + readout["bias"])
        fed = fed + states[residual - 1][0] if residual else fed
        readouts.append(fed)
    return readouts
