"""One layer of a long short-term memory in one direction (Hochreiter & Schmidhuber 1997; gates as in arXiv:1409.2329).

- weight dropout: a mask on the hidden-to-hidden matrix, the same at every step (DropConnect; arXiv:1708.02182)
- projection: the output, which is also the recurrent input, is a linear map of the cell's output (arXiv:1402.1128)
- clipping of cell and projection to an interval, as in ELMo's code

Without projection and clipping, torch's fused operator computes the layer. It has no clipping and computes projections
step by step under autograd, so these have a function here with its own backward pass: the gradients of all matrices
are single products over all steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from stemma.network.dropout import dropout_mask
from stemma.network.initialization import Initializer
from stemma.network.module import TensorFunction


class LSTMState(NamedTuple):
    """The state after a position."""

    output: Tensor  # (B, output width)
    cell: Tensor  # (B, hidden width)


class LSTMLayer(nn.Module):
    """(B, L, input width) -> (B, L, output width), the hidden width or that of the projection.

    `initializer` is for all matrices; the bias starts at zero, or at `forget_bias` for the forget gate."""

    __call__: Callable[..., tuple[Tensor, LSTMState]]
    hidden_matrices = {"input": 4, "recurrent": 4, "projection": 1}  # matrices in a parameter, for Muon

    def __init__(self, input_width: int, hidden: int, initializer: Initializer, *, projection: int | None = None,
                 weight_dropout: float = 0.0, cell_clip: float | None = None, projection_clip: float | None = None,
                 forget_bias: float = 0.0):
        super().__init__()
        self.hidden, self.output_width = hidden, projection or hidden
        self.initializer, self.weight_dropout, self.forget_bias = initializer, weight_dropout, forget_bias
        self.cell_clip, self.projection_clip = cell_clip, projection_clip
        self.input = nn.Parameter(torch.empty(4 * hidden, input_width))  # gates: input, forget, cell, output
        self.recurrent = nn.Parameter(torch.empty(4 * hidden, self.output_width))
        self.bias = nn.Parameter(torch.empty(4 * hidden))
        self.projection = None if projection is None else nn.Parameter(torch.empty(projection, hidden))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            for gates in (self.input, self.recurrent):
                for matrix in gates.chunk(4):
                    self.initializer(matrix)
            if self.projection is not None:
                self.initializer(self.projection)
            self.bias.zero_()
            self.bias[self.hidden:2 * self.hidden] = self.forget_bias

    def zero_state(self, x: Tensor) -> LSTMState:
        return LSTMState(x.new_zeros(len(x), self.output_width), x.new_zeros(len(x), self.hidden))

    def forward(self, x: Tensor, state: LSTMState | None = None, lengths: Tensor | None = None,
                reverse: bool = False) -> tuple[Tensor, LSTMState]:
        """The output at all positions, and the state after the last one that is read.

        `lengths`: (B,) tokens of each row, which are its first positions; None: all positions are tokens. Padding is
        not read, and the output there is zero. `reverse`: read each row from its last token to its first."""
        state = self.zero_state(x) if state is None else state
        recurrent: Tensor = self.recurrent
        if self.training and self.weight_dropout:
            recurrent = recurrent * dropout_mask(recurrent.shape, self.weight_dropout, recurrent.dtype,
                                                 recurrent.device)
        order = None
        if reverse and lengths is None:
            x = x.flip(1)
        elif reverse and lengths is not None:
            order = _reversal(lengths, x.shape[1])[..., None]
            x = x.gather(1, order.expand_as(x))
        if self.projection is None and self.cell_clip is None:
            y, state = self._fused(x, state, recurrent, lengths)
        else:
            y, state = self._step_by_step(x, state, recurrent, lengths)
        if order is not None:
            y = y.gather(1, order.expand_as(y))
        elif reverse:
            y = y.flip(1)
        return y, state

    def _fused(self, x: Tensor, state: LSTMState, recurrent: Tensor,
               lengths: Tensor | None) -> tuple[Tensor, LSTMState]:
        weights = [self.input, recurrent, self.bias, torch.zeros_like(self.bias)]  # torch has two biases
        initial = [state.output[None], state.cell[None]]
        # arguments after the weights: biases, layers, dropout, training, bidirectional
        if lengths is None:
            y, output, cell = torch.lstm(x, initial, weights, True, 1, 0.0, self.training, False, True)
            return y, LSTMState(output[0], cell[0])
        packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        assert packed.sorted_indices is not None and packed.unsorted_indices is not None
        initial = [part.index_select(1, packed.sorted_indices) for part in initial]
        y, output, cell = torch.lstm(packed.data, packed.batch_sizes, initial, weights, True, 1, 0.0, self.training,
                                     False)
        y, _ = pad_packed_sequence(PackedSequence(y, packed.batch_sizes, packed.sorted_indices,
                                                  packed.unsorted_indices), batch_first=True, total_length=x.shape[1])
        final = LSTMState(*(part[0].index_select(0, packed.unsorted_indices) for part in (output, cell)))
        return _without_empty_rows(y, final, state, lengths)

    def _step_by_step(self, x: Tensor, state: LSTMState, recurrent: Tensor,
                      lengths: Tensor | None) -> tuple[Tensor, LSTMState]:
        y, output, cell = _ClippedLSTM.apply(x.transpose(0, 1), state.output, state.cell, self.input, recurrent,
                                             self.bias, self.projection, self.cell_clip, self.projection_clip, lengths)
        return y.transpose(0, 1), LSTMState(output, cell)


def _reversal(lengths: Tensor, length: int) -> Tensor:
    """(B, L): position -> position in the reversed row; padding stays where it is."""
    positions = torch.arange(length, device=lengths.device)
    return torch.where(positions < lengths[:, None], lengths[:, None] - 1 - positions, positions)


def _without_empty_rows(y: Tensor, final: LSTMState, initial: LSTMState,
                        lengths: Tensor) -> tuple[Tensor, LSTMState]:
    """Rows without tokens were read as rows of one token: their output is zero and their state the initial one."""
    empty = (lengths == 0)[:, None]
    if not empty.any():
        return y, final
    return y.masked_fill(empty[..., None], 0.0), LSTMState(*(
        torch.where(empty, old, new) for old, new in zip(initial, final, strict=True)))


class _ClippedLSTM(TensorFunction):
    """An LSTM with an optional projection, and its cell and projection clipped. A clipped value has no gradient.

    Rows whose tokens have all been read keep their state, and their output is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, output: Tensor, cell: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor,
                projection: Tensor | None, cell_clip: float | None, projection_clip: float | None,
                lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """(L, B, input width) -> (L, B, output width), and the last state"""
        length, batch, hidden = len(x), x.shape[1], cell.shape[1]
        gates = torch.addmm(bias, x.reshape(-1, x.shape[2]), weight.t()).view(length, batch, 4 * hidden)
        cells, outputs = x.new_empty(length + 1, batch, hidden), x.new_empty(length + 1, batch, output.shape[1])
        activated = x.new_empty(length, batch, hidden)  # tanh of the cells
        unprojected = None if projection is None else x.new_empty(length, batch, hidden)
        cells[0], outputs[0] = cell, output
        reads = None if lengths is None else (torch.arange(length, device=x.device)[:, None] < lengths)[..., None]
        for step in range(length):
            step_gates = gates[step].addmm_(outputs[step], recurrent.t())
            step_gates[:, :2 * hidden].sigmoid_()
            step_gates[:, 2 * hidden:3 * hidden].tanh_()
            step_gates[:, 3 * hidden:].sigmoid_()
            write, forget, candidate, expose = step_gates.chunk(4, 1)
            new = torch.mul(forget, cells[step], out=cells[step + 1]).addcmul_(write, candidate)
            if cell_clip is not None:
                new.clamp_(-cell_clip, cell_clip)
            torch.tanh(new, out=activated[step])
            if projection is None or unprojected is None:
                torch.mul(expose, activated[step], out=outputs[step + 1])
            else:
                torch.mul(expose, activated[step], out=unprojected[step])
                torch.mm(unprojected[step], projection.t(), out=outputs[step + 1])
                if projection_clip is not None:
                    outputs[step + 1].clamp_(-projection_clip, projection_clip)
            if reads is not None:
                for states in (cells, outputs):
                    states[step + 1] = torch.where(reads[step], states[step + 1], states[step])
        ctx.save_for_backward(x, weight, recurrent, projection, gates, cells, outputs, activated, unprojected, reads)
        ctx.cell_clip, ctx.projection_clip = cell_clip, projection_clip
        y = outputs[1:] if reads is None else outputs[1:] * reads
        return y.clone() if reads is None else y, outputs[-1].clone(), cells[-1].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, recurrent, projection, gates, cells, outputs, activated, unprojected, reads = ctx.saved_tensors
        grad_y, grad_output, grad_cell = grads
        length, batch, hidden = activated.shape
        grad_gates = torch.empty_like(gates)
        grad_projected = None if projection is None else torch.empty_like(outputs[1:])
        grad_output, grad_cell = grad_output.clone(), grad_cell.clone()
        for step in reversed(range(length)):
            kept_output, kept_cell = None, None
            if reads is not None:  # of a row without a token here, the gradient of its state passes through
                kept_output, kept_cell = grad_output * ~reads[step], grad_cell * ~reads[step]
                grad_output, grad_cell = (grad_output + grad_y[step]) * reads[step], grad_cell * reads[step]
            else:
                grad_output = grad_output + grad_y[step]
            if projection is not None and grad_projected is not None:
                if ctx.projection_clip is not None:
                    grad_output = grad_output * (outputs[step + 1].abs() < ctx.projection_clip)
                grad_projected[step] = grad_output
                grad_output = grad_output @ projection
            write, forget, candidate, expose = gates[step].chunk(4, 1)
            tanh = activated[step]
            grad_cell = torch.addcmul(grad_cell, grad_output * expose, 1 - tanh * tanh)
            if ctx.cell_clip is not None:
                grad_cell = grad_cell * (cells[step + 1].abs() < ctx.cell_clip)
            to_write, to_forget, to_candidate, to_expose = grad_gates[step].chunk(4, 1)
            torch.mul(grad_cell * candidate, write * (1 - write), out=to_write)
            torch.mul(grad_cell * cells[step], forget * (1 - forget), out=to_forget)
            torch.mul(grad_cell * write, 1 - candidate * candidate, out=to_candidate)
            torch.mul(grad_output * tanh, expose * (1 - expose), out=to_expose)
            grad_cell = grad_cell * forget
            grad_output = grad_gates[step] @ recurrent
            if kept_output is not None and kept_cell is not None:
                grad_output, grad_cell = grad_output + kept_output, grad_cell + kept_cell
        flat = grad_gates.view(-1, 4 * hidden)
        needs = ctx.needs_input_grad
        return ((flat @ weight).view_as(x) if needs[0] else None, grad_output, grad_cell,
                flat.t() @ x.reshape(-1, x.shape[2]), flat.t() @ outputs[:-1].reshape(-1, outputs.shape[2]),
                flat.sum(0), None if grad_projected is None else
                grad_projected.flatten(0, 1).t() @ unprojected.flatten(0, 1), None, None, None)
