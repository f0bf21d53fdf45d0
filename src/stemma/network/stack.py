"""A stack of blocks, with unpadded computation and the memory of earlier segments.

A forward pass can be run layer by layer (`Stack.start_pass`): to inspect a layer, to stop early, or to continue with
some rows only. It still skips padding and positions whose output is not needed.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from stemma import registry
from stemma.network.attention.self_attention import apply_mask
from stemma.network.block import Block
from stemma.network.body import Body, StackInput, StackOutput
from stemma.network.disentangled_position import DisentangledPositions
from stemma.network.dropout import Dropout
from stemma.network.inputs_outputs import LayerContext
from stemma.network.kinds import build_norm
from stemma.network.module import ModuleSequence
from stemma.network.position_kinds import build_position_scheme
from stemma.network.unpad import UnpaddedBatch, should_unpad
from stemma.schema.network import NetworkSettings
from stemma.schema.parts import NetworkPart
from stemma.visibility import CompiledMask


class Stack(Body):
    """A stack of blocks. In a part that attends to another part (a decoder), blocks have cross-attention and
    self-attention is causal."""

    def __init__(self, settings: NetworkSettings, part: NetworkPart):
        super().__init__()
        cross_attention = part.attends_to is not None
        first = Block(settings, cross_attention)
        others = [Block(settings, cross_attention, first, index) for index in range(1, part.layers)]
        self.blocks = ModuleSequence[Block]([first, *others])
        # the position bias of all layers (T5), if there is one
        self.near = build_position_scheme(settings).build_score_bias(bidirectional=not cross_attention)
        self.final_norm = build_norm(settings.norm, settings.width) if settings.norm.placement == "pre" else None
        self.output_dropout = Dropout(settings.output_dropout)
        # features of attention that a pass may use, such as skipping padding
        position_wise = registry.get("feedforward", settings.transition).settings.position_wise
        self.supports = settings.attention.supports if position_wise else frozenset()
        self.mixes = bool(settings.mix)  # blocks mix the outputs of all sublayers below them
        if self.mixes:
            self.supports -= {"narrowed"}

    def forward(self, x: Tensor, stack_input: StackInput) -> StackOutput:
        """(B, Q, width) -> (B, Q, width)."""
        layers = self.start_pass(x, stack_input)
        while not layers.done:
            layers.run_next_layer()
        return layers.finish()

    def start_pass(self, x: Tensor, stack_input: StackInput) -> LayerwisePass:
        return LayerwisePass(self, x, stack_input)

    def layer_groups(self) -> list[list[nn.Module]]:
        """The modules of each layer, from the bottom. A shared position bias belongs to the lowest layer, the final
        norm to the highest."""
        groups: list[list[nn.Module]] = [[block] for block in self.blocks]
        groups[0] += [] if self.near is None else [self.near]
        groups[-1] += [] if self.final_norm is None else [self.final_norm]
        return groups

    def finish(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width): the final norm and dropout after the last block."""
        return self.output_dropout(x if self.final_norm is None else self.final_norm(x))

    def layer_context(self, layer_index: int, x: Tensor, stack_input: StackInput) -> LayerContext:
        """The arguments of one layer: its mask, and its keys: the text after the layer's memory."""
        mask = stack_input.masks[layer_index % len(stack_input.masks)]
        rotation = stack_input.rotations[layer_index % len(stack_input.rotations)] if stack_input.rotations else None
        if stack_input.layer_context.unpadded is not None:
            return replace(stack_input.layer_context, mask=mask, layer_index=layer_index, rotation=rotation)
        text_states = x[:, : stack_input.length] if x.shape[1] > stack_input.length else x
        keys = text_states
        if stack_input.memory is not None:
            keys = torch.cat([stack_input.memory.hidden_states[layer_index].to(x.dtype), text_states], 1)
        return replace(stack_input.layer_context, mask=mask, key_states=None if keys is x else keys,
                       zero_memory_length=stack_input.zero_memory_length, layer_index=layer_index,
                       cache=None if stack_input.cache is None else stack_input.cache[layer_index],
                       cross_cache=stack_input.cross_cache, rotation=rotation)

    def memory_update(self, layer_index: int, x: Tensor, stack_input: StackInput) -> list[Tensor]:
        """The layer's new memory, made of its input; an empty list if no memory is stored."""
        if stack_input.memory_update is None:
            return []
        previous = stack_input.memory.hidden_states[layer_index] if stack_input.memory else None
        return [_append_memory(previous, x[:, : stack_input.length], *stack_input.memory_update)]


class LayerwisePass:
    """A forward pass through a stack, layer by layer.

    If only some outputs are needed, the last block runs at those positions and leaves zeros elsewhere. This saves
    little in a deep stack and about a fifth in a shallow one (BERT predicts 15% of the tokens). With a query stream,
    the last block runs for the query stream only. If much of the batch is padding and its output is not needed,
    padding is not computed at all.
    """

    def __init__(self, stack: Stack, x: Tensor, stack_input: StackInput):
        self.stack, self.layer_index, self._outputs_only = stack, 0, False
        self.earlier: tuple[Tensor, ...] = ()  # the embedding and the sums after all sublayers, if they are mixed
        self.score_biases: list[Tensor] = []  # layer i uses score_biases[i % len(score_biases)]
        if stack.near is not None:  # the bias includes the attention mask, so that it is applied once for all layers
            bias = stack.near(stack_input.length, stack_input.num_keys, x.dtype)
            self.score_biases = [apply_mask(bias, mask) for mask in stack_input.masks]
            context = replace(stack_input.layer_context, score_bias=self.score_biases[0])
            stack_input = replace(stack_input, layer_context=context, masks=[CompiledMask()])
        self.output = StackOutput(x, hidden_states=[x] if stack_input.keep_hidden_states else None)
        self._start(x, stack_input)

    def _start(self, x: Tensor, stack_input: StackInput) -> None:
        """Set the current hidden states, without padding if that saves work."""
        self.unpadded = self._unpad_if_useful(x, stack_input)
        if self.unpadded is not None:
            context = replace(stack_input.layer_context, unpadded=self.unpadded)
            x, stack_input = self.unpadded.unpad(x), replace(stack_input, layer_context=context)
        self.x, self.stack_input = x, stack_input
        if not self.earlier and self.stack.mixes:
            self.earlier = (x,)

    @property
    def done(self) -> bool:
        return self.layer_index == len(self.stack.blocks)

    def run_next_layer(self) -> None:
        """Run the next block."""
        stack, stack_input, block = self.stack, self.stack_input, self.stack.blocks[self.layer_index]
        context = stack.layer_context(self.layer_index, self.x, stack_input)
        if len(self.score_biases) > 1:
            context = replace(context, score_bias=self.score_biases[self.layer_index % len(self.score_biases)])
        self.output.memory += stack.memory_update(self.layer_index, self.x, stack_input)
        self.layer_index += 1
        last = self.done and not stack_input.keep_hidden_states and not stack_input.keep_attention_scores
        if last and self._only_outputs_needed():
            self._run_last_at_outputs(block, context)
            return
        if last and self.unpadded is None and self.x.shape[1] > stack_input.length:
            self.x, context = _query_stream_only(self.x, context, stack_input)
        context = replace(context, earlier=self.earlier) if stack.mixes else context
        if stack_input.keep_attention_scores:
            self.x, scores = block.forward_with_scores(self.x, context)
            self.output.attention_scores.append(scores)
        else:
            self.x = block(self.x, context)
        if stack.mixes:
            self.x, *sums = self.x.unbind(0)
            self.earlier += tuple(sums)
        if self.output.hidden_states is not None:
            self.output.hidden_states.append(self.x)

    def hidden_state(self) -> Tensor:
        """(B, Q, width): the output of the stack if it ended after the current layer."""
        x = self.stack.finish(self.x)
        return x if self.unpadded is None else self.unpadded.pad(x)

    def finish(self) -> StackOutput:
        """The output of the stack, after the last layer or an early stop."""
        if not self._outputs_only:
            self.output.last_hidden_state = self.hidden_state()
        return self.output

    def select_rows(self, rows: Tensor) -> None:
        """Continue with these rows of the batch only (early exit of the others): (R,) row indices."""
        stack_input = self.stack_input
        stateless = stack_input.cache is None and stack_input.memory is None and stack_input.memory_update is None
        assert stateless and stack_input.cross_cache is None, "rows can leave early only without cache and memory"
        x, *earlier = (state if self.unpadded is None else self.unpadded.pad(state)
                       for state in (self.x, *self.earlier))
        context = stack_input.layer_context

        def select(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[rows]

        context = replace(context, unpadded=None, different_segment=select(context.different_segment),
                          attention_token_mask=select(context.attention_token_mask),
                          score_bias=None if context.score_bias is None
                          else _select_bias_rows(context.score_bias, rows),
                          relative_positions=None if context.relative_positions is None
                          else context.relative_positions.rows(rows))
        self.score_biases = [_select_bias_rows(bias, rows) for bias in self.score_biases]
        position_ids, output_positions = stack_input.position_ids, stack_input.output_positions
        if output_positions is not None:
            output_positions = _select_row_positions(output_positions, rows, stack_input.length)
        self._start(x[rows], replace(
            stack_input, layer_context=context, masks=[mask.rows(rows) for mask in stack_input.masks],
            output_positions=output_positions, rotations=[rotation.rows(rows) for rotation in stack_input.rotations],
            position_ids=position_ids if position_ids is None or position_ids.dim() < 2 else position_ids[rows]))
        self.earlier = tuple(state[rows] if self.unpadded is None else self.unpadded.unpad(state[rows])
                             for state in earlier)

    def _unpad_if_useful(self, x: Tensor, stack_input: StackInput) -> UnpaddedBatch | None:
        """The batch without padding, if that saves work and the pass is plain self-attention without state."""
        context, token_mask = stack_input.layer_context, stack_input.layer_context.attention_token_mask
        stateless = stack_input.cache is None and stack_input.memory is None and stack_input.memory_update is None
        plain = "padding_free" in self.stack.supports and stateless and stack_input.cross_cache is None \
            and not stack_input.keep_hidden_states and not stack_input.keep_attention_scores \
            and x.shape[1] == stack_input.length
        if not stack_input.skip_padding or not plain or token_mask is None or not should_unpad(token_mask, x.shape[2]):
            return None
        # a score bias has the full length of the batch, and many small products are slow on a GPU
        group_by_length = context.score_bias is None and context.relative_positions is None and not token_mask.is_cuda
        return UnpaddedBatch(token_mask, group_by_length=group_by_length)

    def _only_outputs_needed(self) -> bool:
        """Whether the last block can run at the output positions only, and these are fewer than half."""
        stack_input, context = self.stack_input, self.stack_input.layer_context
        plain = "narrowed" in self.stack.supports and stack_input.cache is None and stack_input.memory is None \
            and context.relative_positions is None and context.score_bias is None and stack_input.cross_cache is None
        num_positions = self.x.shape[:2].numel() if self.unpadded is None else len(self.unpadded.token_indices)
        output_positions = stack_input.output_positions
        return plain and output_positions is not None and 2 * len(output_positions) < num_positions

    def _run_last_at_outputs(self, block: Block, context: LayerContext) -> None:
        """The last block at the output positions only: queries are restricted, keys and values are not."""
        output_positions, unpadded = self.stack_input.output_positions, self.unpadded
        assert output_positions is not None
        hidden = self.x if unpadded is None else unpadded.pad(self.x)
        batch, length, width = hidden.shape
        row, position = output_positions // length, output_positions % length
        counts = torch.bincount(row, minlength=batch)
        if context.mask.costs_less_than(int(counts.max())):  # attention at all positions, the rest at the outputs
            keys = context.key_states if unpadded is None else self.x
            y = block(hidden, replace(context, key_states=keys, output_queries=(row, position)))
            self._set_output(y, output_positions, hidden)
            return
        # index of each output position within its row
        rank = torch.arange(len(output_positions), device=hidden.device) - (counts.cumsum(0) - counts)[row]
        positions = output_positions.new_zeros(batch, int(counts.max()))  # (B, Q); shorter rows repeat position 0
        positions[row, rank] = position
        query_states = hidden.gather(1, positions[:, :, None].expand(-1, -1, width))  # (B, Q, width)
        rotation = context.rotation
        rotation = None if rotation is None else replace(rotation, query=rotation.key.at_positions(positions))
        y = block(query_states, replace(context, mask=context.mask.for_queries(positions, length), key_states=self.x,
                                        rotation=rotation, output_queries=(row, rank)))
        self._set_output(y, output_positions, hidden)

    def _set_output(self, y: Tensor, output_positions: Tensor, hidden: Tensor) -> None:
        """(N, width) at the output positions -> (B, L, width) output of the stack, zero elsewhere."""
        y = self.stack.finish(y)
        zeros = hidden.new_zeros(hidden.shape[:2].numel(), hidden.shape[2]).to(y.dtype)
        flat = zeros.index_copy(0, output_positions, y)
        self.output.last_hidden_state, self._outputs_only = flat.view(hidden.shape), True


def _query_stream_only(x: Tensor, context: LayerContext, stack_input: StackInput) -> tuple[Tensor, LayerContext]:
    """Restrict the queries to the query stream, which follows the text."""
    first = stack_input.length
    mask = CompiledMask(dense=None if context.mask.dense is None else context.mask.dense[:, :, first:])
    relative = context.relative_positions
    assert not isinstance(relative, DisentangledPositions), "disentangled positions have no query stream"
    relative = None if relative is None else relative.query_stream_only()
    different_segment = None if context.different_segment is None else context.different_segment[:, :, first:]
    rotation = context.rotation
    rotation = None if rotation is None else replace(rotation, query=rotation.query.from_position(first))
    return x[:, first:], replace(context, mask=mask, relative_positions=relative, different_segment=different_segment,
                                 rotation=rotation)


def _select_bias_rows(bias: Tensor, rows: Tensor) -> Tensor:
    """(1 or B, heads, Q, K) for some rows of the batch."""
    return bias if len(bias) == 1 else bias[rows]


def _select_row_positions(output_positions: Tensor, rows: Tensor, length: int) -> Tensor:
    """Indices into B x L as indices into the batch of the selected rows."""
    num_rows = max(int(output_positions.max()) // length, int(rows.max())) + 1
    new_rows = torch.full((num_rows,), -1, device=output_positions.device)  # -1: not selected
    new_rows[rows] = torch.arange(len(rows), device=output_positions.device)
    row = new_rows[output_positions // length]
    return (row * length + output_positions % length)[row >= 0].sort().values


def _append_memory(previous: Tensor | None, hidden: Tensor, max_length: int, num_positions: int) -> Tensor:
    """The last `max_length` positions of the previous memory followed by the first `num_positions` of `hidden`."""
    new = hidden[:, :num_positions].detach()
    if previous is not None and new.shape[1] < max_length:
        new = torch.cat([previous[:, -(max_length - new.shape[1]):].to(new.dtype), new], 1)
    return new[:, -max_length:].clone()  # a copy: a view would keep the whole step's activations alive
