"""Two LSTMs that read the text in opposite directions and never see each other's states (ELMo, arXiv:1802.05365).

Each layer of a direction reads the layer below of the same direction only, so each direction is a language model. The
outputs of both stand side by side, at every layer; both directions read the same embedding, which stands twice in the
lowest hidden state, so that all hidden states have one width.

A row of pre-training is read in one direction, the one that its text is stored in, and its output has the width of one
direction. So has a causal pass, which the direction from left to right alone computes. The state of a row belongs to
its direction, and is carried from call to call as in `lstm.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from stemma.network.body import Body, StackInput, StackOutput
from stemma.network.dropout import Dropout
from stemma.network.initialization import Initializer
from stemma.network.lstm_kinds import LSTMSettings
from stemma.network.lstm_layer import LSTMLayer, LSTMState
from stemma.network.module import ModuleSequence
from stemma.network.tokens_first import TokensFirst
from stemma.schema.network import NetworkSettings
from stemma.schema.parts import NetworkPart


class LSTMStack(nn.Module):
    """The layers of one direction."""

    __call__: Callable[..., tuple[list[Tensor], list[LSTMState]]]

    def __init__(self, settings: NetworkSettings, body: LSTMSettings, layers: int):
        super().__init__()
        width = settings.width // 2
        input_width, hidden = settings.embedding.width or settings.width, body.hidden or width
        stack = []
        for _ in range(layers):
            # the scale of TensorFlow's initializer (Glorot & Bengio 2010), for a matrix with input and state side by
            # side
            initializer = Initializer((2.0 / (input_width + width + 4 * hidden))**0.5, False)
            stack.append(LSTMLayer(input_width, hidden, initializer, projection=width if body.projection else None,
                                   weight_dropout=body.weight_dropout, cell_clip=body.cell_clip,
                                   projection_clip=body.projection_clip, forget_bias=body.forget_bias))
            input_width = stack[-1].output_width
        self.layers, self.residual, self.dropout = ModuleSequence[LSTMLayer](stack), body.residual, \
            Dropout(settings.dropout)

    def forward(self, x: Tensor, states: list[LSTMState] | None, lengths: Tensor | None,
                reverse: bool = False) -> tuple[list[Tensor], list[LSTMState]]:
        """(B, L, input width) -> the output and the last state of every layer. The input of a layer is also what is
        added to its output, so dropout concerns both (as in the authors' code)."""
        outputs, new_states = [], []
        for index, layer in enumerate(self.layers):
            if index:
                x = self.dropout(x)
            y, state = layer(x, None if states is None else states[index], lengths, reverse)
            x = x + y if self.residual and index else y
            outputs.append(x)
            new_states.append(state)
        return outputs, new_states


class OppositeLSTMs(Body):
    """One stack of `network.layers` layers for each direction; both together are as wide as the network."""

    def __init__(self, settings: NetworkSettings, part: NetworkPart):
        super().__init__()
        assert isinstance(part.body, LSTMSettings)
        self.directions = ModuleSequence[LSTMStack]([LSTMStack(settings, part.body, part.layers) for _ in range(2)])
        self.doubles_input = (settings.embedding.width or settings.width) != settings.width
        self.output_dropout = Dropout(settings.output_dropout)

    def layer_groups(self) -> list[list[nn.Module]]:
        forward, backward = self.directions
        return [[below, above] for below, above in zip(forward.layers, backward.layers, strict=True)]

    def forward(self, x: Tensor, stack_input: StackInput) -> StackOutput:
        with torch.autocast(x.device.type, enabled=False):  # the recurrence needs full precision
            x = x.float()
            one_way = stack_input.reversed_rows is not None or stack_input.layer_context.causal
            lowest = torch.cat([x, x], -1) if self.doubles_input and not one_way else x
            padded = TokensFirst.of(stack_input.token_mask)
            x = x if padded is None else padded.gather(x)
            lengths = None if padded is None else padded.lengths
            states: list[LSTMState] = []
            if one_way:
                outputs, states = self._one_way(x, lengths, stack_input)
            else:
                both = [stack(x, None, lengths, bool(index))[0] for index, stack in enumerate(self.directions)]
                outputs = [torch.cat(layers, -1) for layers in zip(*both, strict=True)]
            outputs = outputs if padded is None else [padded.restore(layer) for layer in outputs]
            output = StackOutput(self.output_dropout(outputs[-1]),
                                 hidden_states=[lowest, *outputs] if stack_input.keep_hidden_states else None)
            if stack_input.layer_context.reuse_length != 0:
                _store(states, x.shape[1], stack_input, output, self.training)
            return output

    def _one_way(self, x: Tensor, lengths: Tensor | None,
                 stack_input: StackInput) -> tuple[list[Tensor], list[LSTMState]]:
        """Every row in its own direction: the outputs and the last states of all layers."""
        before = _stored_states(stack_input, len(self.directions[0].layers))
        backward = stack_input.reversed_rows
        if backward is None or not backward.any():
            return self.directions[0](x, before, lengths)
        if backward.all():
            return self.directions[1](x, before, lengths)
        rows = [torch.nonzero(~backward)[:, 0], torch.nonzero(backward)[:, 0]]
        results = [stack(x[own], None if before is None else [_rows(state, own) for state in before],
                         None if lengths is None else lengths[own])
                   for stack, own in zip(self.directions, rows, strict=True)]
        order = torch.cat(rows).argsort()
        outputs = [torch.cat(parts)[order] for parts in zip(*(result[0] for result in results), strict=True)]
        states = [LSTMState(*(torch.cat(parts)[order] for parts in zip(*pair, strict=True)))
                  for pair in zip(*(result[1] for result in results), strict=True)]
        return outputs, states


def _rows(state: LSTMState, rows: Tensor) -> LSTMState:
    return LSTMState(*(part[rows] for part in state))


def _stored_states(stack_input: StackInput, layers: int) -> list[LSTMState] | None:
    """The state of each layer after the previous call; None: there was none."""
    if stack_input.memory is not None:
        parts = [part[:, 0] for part in stack_input.memory.hidden_states]
        return [LSTMState(*parts[2 * index:2 * index + 2]) for index in range(layers)]
    if stack_input.cache is None or not stack_input.cache[0].sublayer_states:
        return None
    stored = [stack_input.cache[index].sublayer_states for index in range(layers)]
    return [LSTMState(states["output"], states["cell"]) for states in stored]


def _store(states: list[LSTMState], num_new: int, stack_input: StackInput, output: StackOutput,
           training: bool) -> None:
    """Keep the states for the next call, as `lstm.py` does."""
    for index, state in enumerate(states):
        if stack_input.cache is not None:
            stack_input.cache[index].store_states(num_new, output=state.output, cell=state.cell)
        elif training:
            output.memory += [part.detach()[:, None] for part in state]
