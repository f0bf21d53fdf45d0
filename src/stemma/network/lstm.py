"""LSTM layers as a body, in one direction or in both.

State. An LSTM in one direction carries its state from call to call: in training as a `Memory` (the output and the cell
after the last position of each layer, detached), otherwise in the `KVCache`. So a row continues the row before it
(truncated back-propagation through time), and generation computes every token once.

Padding. Tokens are moved to the start of their rows if they are not there; padding is not read in any direction, and
the output at padding is zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from stemma.network.body import Body, StackInput, StackOutput
from stemma.network.dropout import Dropout, VariationalDropout
from stemma.network.initialization import Initializer, default_initializer
from stemma.network.lstm_kinds import LSTMSettings
from stemma.network.lstm_layer import LSTMLayer, LSTMState
from stemma.network.module import ModuleSequence
from stemma.network.tokens_first import TokensFirst
from stemma.schema.network import NetworkSettings
from stemma.schema.parts import NetworkPart


class LSTMBody(Body):
    """`network.layers` LSTM layers. The first has the width of the embedding as its input width."""

    def __init__(self, settings: NetworkSettings, part: NetworkPart):
        super().__init__()
        body = part.body
        assert isinstance(body, LSTMSettings)
        self.residual, self.carries_state = body.residual, body.carries_state
        self.activation_penalty, self.temporal_penalty = body.activation_penalty, body.temporal_penalty
        output_width = settings.width // body.directions
        input_width = settings.embedding.width or settings.width
        layers = []
        for index in range(part.layers):
            last = index == part.layers - 1
            hidden = output_width if body.hidden is None or last and not body.projection else body.hidden
            layer = LSTMDirections(body, input_width, hidden, output_width if body.projection else None,
                                   default_initializer(settings, input_width))
            input_width = layer.output_width
            layers.append(layer)
        self.layers = ModuleSequence[LSTMDirections](layers)
        dropout = VariationalDropout if body.variational else Dropout
        self.dropout, self.output_dropout = dropout(settings.dropout), dropout(settings.output_dropout)

    def layer_groups(self) -> list[list[nn.Module]]:
        return [[layer] for layer in self.layers]

    def forward(self, x: Tensor, stack_input: StackInput) -> StackOutput:
        with torch.autocast(x.device.type, enabled=False):  # the recurrence needs full precision
            return self._forward(x.to(torch.promote_types(x.dtype, torch.float32)), stack_input)

    def _forward(self, x: Tensor, stack_input: StackInput) -> StackOutput:
        output = StackOutput(x, hidden_states=[x] if stack_input.keep_hidden_states else None)
        rows = TokensFirst.of(stack_input.token_mask)
        stored = stack_input.layer_context.reuse_length  # positions that the state for the next call has read
        x = x if rows is None else rows.gather(x)
        for index, layer in enumerate(self.layers):
            if index:
                x = self.dropout(x)
            state = self._initial_state(index, stack_input)
            if stored is not None and 0 < stored < x.shape[1]:  # the rest is read again in the next call
                first, state = layer(x[:, :stored], state, None)
                y = torch.cat([first, layer(x[:, stored:], state, None)[0]], 1)
            else:
                y, state = layer(x, state, None if rows is None else rows.lengths)
            x = y + x if self.residual and index else y
            if self.carries_state and stored != 0:
                self._store_state(index, x.shape[1] if stored is None else stored, state, stack_input, output)
            if output.hidden_states is not None:
                output.hidden_states.append(x if rows is None else rows.restore(x))
        dropped = self.output_dropout(x)
        if self.training:
            output.auxiliary_losses = self._penalties(x, dropped, rows)
        output.last_hidden_state = dropped if rows is None else rows.restore(dropped)
        return output

    def _initial_state(self, index: int, stack_input: StackInput) -> list[LSTMState] | None:
        if not self.carries_state:
            return None
        if stack_input.memory is not None:
            states = stack_input.memory.hidden_states[2 * index:2 * index + 2]
            return [LSTMState(states[0][:, 0], states[1][:, 0])]
        stored = {} if stack_input.cache is None else stack_input.cache[index].sublayer_states
        return [LSTMState(stored["output"], stored["cell"])] if stored else None

    def _store_state(self, index: int, num_new: int, states: list[LSTMState], stack_input: StackInput,
                     output: StackOutput) -> None:
        (state,) = states
        if stack_input.cache is not None:
            stack_input.cache[index].store_states(num_new, output=state.output, cell=state.cell)
        elif self.training:
            output.memory += [part.detach()[:, None] for part in state]

    def _penalties(self, x: Tensor, dropped: Tensor, rows: TokensFirst | None) -> dict[str, Tensor]:
        """Activation regularization and temporal activation regularization (arXiv:1708.01009), as means over tokens."""
        penalties = {}
        if self.activation_penalty:
            penalties["activation"] = self.activation_penalty * _mean(dropped.square(), rows, 0)
        if self.temporal_penalty and x.shape[1] > 1:
            penalties["temporal"] = self.temporal_penalty * _mean((x[:, 1:] - x[:, :-1]).square(), rows, 1)
        return penalties


class LSTMDirections(nn.Module):
    """One layer in one direction, or in both with outputs side by side."""

    __call__: Callable[..., tuple[Tensor, list[LSTMState]]]

    def __init__(self, body: LSTMSettings, input_width: int, hidden: int, projection: int | None,
                 initializer: Initializer):
        super().__init__()
        self.directions = ModuleSequence[LSTMLayer]([
            LSTMLayer(input_width, hidden, initializer, projection=projection, weight_dropout=body.weight_dropout,
                      cell_clip=body.cell_clip, projection_clip=body.projection_clip, forget_bias=body.forget_bias)
            for _ in range(body.directions)])
        self.output_width = sum(direction.output_width for direction in self.directions)

    def forward(self, x: Tensor, states: list[LSTMState] | None,
                lengths: Tensor | None) -> tuple[Tensor, list[LSTMState]]:
        """(B, L, input width) -> (B, L, output width), and the last state of each direction."""
        results = [direction(x, None if states is None else states[index], lengths, reverse=bool(index))
                   for index, direction in enumerate(self.directions)]
        outputs, new_states = [y for y, _ in results], [state for _, state in results]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1), new_states


def _mean(values: Tensor, rows: TokensFirst | None, first: int) -> Tensor:
    """The mean over the tokens of (B, L - first, width), of which the first positions of each row are left out."""
    if rows is None:
        return values.mean()
    positions = torch.arange(values.shape[1], device=values.device) + first
    is_token = (positions < rows.lengths[:, None])[..., None]
    return (values * is_token).sum() / (is_token.sum() * values.shape[2]).clamp(min=1)


def flop_counts() -> dict[Any, Callable[..., int]]:
    """FLOPs of operators that torch's counter does not know: oneDNN's fused LSTM, with the input and recurrent products
    of every step and twice as many for the gradients, and the recurrent product of the layers without it."""
    def forward(input_shape: torch.Size, input_weight: torch.Size, recurrent: torch.Size, *args: Any,
                **kwargs: Any) -> int:
        return 2 * input_shape[:-1].numel() * (input_weight.numel() + recurrent.numel())

    def backward(input_shape: torch.Size, input_weight: torch.Size, recurrent: torch.Size, *args: Any,
                 **kwargs: Any) -> int:
        return 2 * forward(input_shape, input_weight, recurrent)

    def product(total: torch.Size, left: torch.Size, right: torch.Size, *args: Any, **kwargs: Any) -> int:
        return 2 * left.numel() * right[1]

    return {torch.ops.aten.mkldnn_rnn_layer: forward, torch.ops.aten.mkldnn_rnn_layer_backward: backward,
            torch.ops.aten.addmm_: product}
