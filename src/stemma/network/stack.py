"""Depth: how blocks follow one another, what each of them looks at, and what earlier segments left.

A stack can be walked block by block (`Stack.start_pass`), so that something may look at a layer, stop early, or go on
with some rows only, and still profit from what is left out: padding, and positions that nobody reads.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from stemma import registry
from stemma.network.attention.self_attention import apply_mask
from stemma.network.block import Block
from stemma.network.body import Body, StackInput, StackOutput
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
    """Blocks upon each other. Those of a part that attends to another part's output have one sublayer more, and its
    text is read from one end."""

    def __init__(self, settings: NetworkSettings, part: NetworkPart):
        super().__init__()
        crossed = part.attends_to is not None
        first = Block(settings, crossed)
        self.blocks = ModuleSequence[Block]([first, *(Block(settings, crossed, first) for _ in range(part.layers - 1))])
        self.near = build_position_scheme(settings).build_score_bias(bidirectional=not crossed)
        self.final_norm = build_norm(settings.norm, settings.width) if settings.norm.place == "pre" else None
        self.output_dropout = Dropout(settings.output_dropout)
        # what can be left out: padding, and positions that nobody reads
        position_wise = registry.get("feedforward", settings.transition).settings.position_wise
        self.supports = settings.attention.supports if position_wise else frozenset()

    def forward(self, x: Tensor, stack_input: StackInput) -> StackOutput:
        """(B, Q, width) -> (B, Q, width)."""
        walk = self.start_pass(x, stack_input)
        while not walk.done:
            walk.run_next_layer()
        return walk.finish()

    def start_pass(self, x: Tensor, stack_input: StackInput) -> LayerwisePass:
        return LayerwisePass(self, x, stack_input)

    def layer_groups(self) -> list[list[nn.Module]]:
        """The modules of each layer, the lowest first: what serves all layers belongs to the lowest, what ends the
        stack to the highest."""
        groups: list[list[nn.Module]] = [[block] for block in self.blocks]
        groups[0] += [] if self.near is None else [self.near]
        groups[-1] += [] if self.final_norm is None else [self.final_norm]
        return groups

    def finish(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width): what becomes of the last block's output."""
        return self.output_dropout(x if self.final_norm is None else self.final_norm(x))

    def layer_context(self, layer_index: int, x: Tensor, stack_input: StackInput) -> LayerContext:
        """What one layer looks at: the text, and before it what the same layer read earlier."""
        mask = stack_input.masks[layer_index % len(stack_input.masks)]
        rotation = stack_input.rotations[layer_index % len(stack_input.rotations)] if stack_input.rotations else None
        if stack_input.layer_context.unpadded is not None:
            return replace(stack_input.layer_context, mask=mask, layer_index=layer_index, rotation=rotation)
        text = x[:, : stack_input.length] if x.shape[1] > stack_input.length else x
        seen = text if stack_input.memory is None else torch.cat([stack_input.memory.hidden_states[layer_index].to(x.dtype), text], 1)
        return replace(stack_input.layer_context, mask=mask, key_states=None if seen is x else seen,
                       zero_memory_length=stack_input.zero_memory_length, layer_index=layer_index,
                       cache=None if stack_input.cache is None else stack_input.cache[layer_index],
                       cross_cache=stack_input.cross_cache, rotation=rotation)

    def memory_update(self, layer_index: int, x: Tensor, stack_input: StackInput) -> list[Tensor]:
        """What a layer is to remember of what enters it; nothing where nothing is kept."""
        if stack_input.memory_update is None:
            return []
        before = stack_input.memory.hidden_states[layer_index] if stack_input.memory else None
        return [_append_memory(before, x[:, : stack_input.length], *stack_input.memory_update)]


class LayerwisePass:
    """A forward pass through a stack, block by block.

    Where only some positions will be read, the last block computes those alone and leaves the rest zero: of a deep
    stack's cost that is little, of a shallow one's (arXiv:1810.04805 scores 15%) about a fifth. In the same way it
    leaves out the text where only the positions behind it (a second stream) ask. Padding is not computed at all where
    nobody reads it and there is much of it.
    """

    def __init__(self, stack: Stack, x: Tensor, stack_input: StackInput):
        self.stack, self.layer_index, self._outputs_only = stack, 0, False
        self.score_biases: list[Tensor] = []  # taken in turn by the layers
        if stack.near is not None:  # the attention mask goes into it too: once for all layers that have the same
            bias = stack.near(stack_input.length, stack_input.num_keys, x.dtype)
            self.score_biases = [apply_mask(bias, mask) for mask in stack_input.masks]
            stack_input = replace(stack_input, layer_context=replace(stack_input.layer_context,
                                                                     score_bias=self.score_biases[0]),
                                  masks=[CompiledMask()])
        self.output = StackOutput(x, hidden_states=[x] if stack_input.keep_hidden_states else None)
        self._start(x, stack_input)

    def _start(self, x: Tensor, stack_input: StackInput) -> None:
        """Leave padding out from here on."""
        self.unpadded = self._unpad_if_useful(x, stack_input)
        if self.unpadded is not None:
            x, stack_input = self.unpadded.unpad(x), replace(stack_input,
                                                             layer_context=replace(stack_input.layer_context,
                                                                                   unpadded=self.unpadded))
        self.x, self.stack_input = x, stack_input

    @property
    def done(self) -> bool:
        return self.layer_index == len(self.stack.blocks)

    def run_next_layer(self) -> None:
        """Through one more block."""
        stack, given, block = self.stack, self.stack_input, self.stack.blocks[self.layer_index]
        context = stack.layer_context(self.layer_index, self.x, given)
        if len(self.score_biases) > 1:
            context = replace(context, score_bias=self.score_biases[self.layer_index % len(self.score_biases)])
        self.output.memory += stack.memory_update(self.layer_index, self.x, given)
        self.layer_index += 1
        last = self.done and not given.keep_hidden_states and not given.keep_attention_scores
        if last and self._only_outputs_needed():
            self._run_last_at_outputs(block, context)
            return
        if last and self.unpadded is None and self.x.shape[1] > given.length:
            self.x, context = _query_stream_only(self.x, context, given)
        if given.keep_attention_scores:
            self.x, scores = block.forward_with_scores(self.x, context)
            self.output.attention_scores.append(scores)
        else:
            self.x = block(self.x, context)
        if self.output.hidden_states is not None:
            self.output.hidden_states.append(self.x)

    def hidden_state(self) -> Tensor:
        """(B, Q, width) as it would leave the stack if this were its last layer."""
        x = self.stack.finish(self.x)
        return x if self.unpadded is None else self.unpadded.pad(x)

    def finish(self) -> StackOutput:
        """What the stack gives back, once all blocks are done or whoever walks stops here."""
        if not self._outputs_only:
            self.output.last_hidden_state = self.hidden_state()
        return self.output

    def select_rows(self, rows: Tensor) -> None:
        """Go on with these rows of the batch alone: (R,) their numbers. The others have left, early."""
        given = self.stack_input
        assert given.cache is None and given.memory is None and given.cross_cache is None and given.memory_update is None, \
            "rows leave a batch that nothing is kept of"
        x = self.x if self.unpadded is None else self.unpadded.pad(self.x)
        context = given.layer_context
        context = replace(context, unpadded=None, different_segment=None if context.different_segment is None
                          else context.different_segment[rows],
                          attention_token_mask=None if context.attention_token_mask is None
                          else context.attention_token_mask[rows],
                          score_bias=None if context.score_bias is None else _select_bias_rows(context.score_bias,
                                                                                               rows),
                          relative_positions=None if context.relative_positions is None
                          else context.relative_positions.rows(rows))
        self.score_biases = [_select_bias_rows(bias, rows) for bias in self.score_biases]
        wanted = None if given.output_positions is None else _select_row_positions(given.output_positions, rows,
                                                                                   given.length)
        self._start(x[rows], replace(
            given, layer_context=context, masks=[mask.rows(rows) for mask in given.masks], output_positions=wanted,
            rotations=[turn.rows(rows) for turn in given.rotations],
            position_ids=given.position_ids if given.position_ids is None or given.position_ids.dim() < 2 else
            given.position_ids[rows]))

    def _unpad_if_useful(self, x: Tensor, stack_input: StackInput) -> UnpaddedBatch | None:
        """The batch without its padding, where the text alone is looked at and nothing is kept of it."""
        token_mask = stack_input.layer_context.attention_token_mask
        plain = "padding_free" in self.stack.supports and stack_input.cache is None and stack_input.memory is None \
            and stack_input.memory_update is None and stack_input.cross_cache is None and not stack_input.keep_hidden_states and not stack_input.keep_attention_scores \
            and x.shape[1] == stack_input.length
        if not stack_input.skip_padding or not plain or token_mask is None or not should_unpad(token_mask):
            return None
        # what is added to the scores is made for all rows alike; and many small products do not suit a graphics card
        group_by_length = stack_input.layer_context.score_bias is None and stack_input.layer_context.relative_positions is None and not token_mask.is_cuda
        return UnpaddedBatch(token_mask, group_by_length=group_by_length)

    def _only_outputs_needed(self) -> bool:
        given = self.stack_input
        plain = "narrowed" in self.stack.supports and given.cache is None and given.memory is None \
            and given.layer_context.relative_positions is None and given.layer_context.score_bias is None and given.cross_cache is None
        places = self.x.shape[:2].numel() if self.unpadded is None else len(self.unpadded.token_indices)
        return plain and given.output_positions is not None and 2 * len(given.output_positions) < places

    def _run_last_at_outputs(self, block: Block, context: LayerContext) -> None:
        """The last block for the wanted positions only: they ask, all positions answer."""
        wanted, ragged = self.stack_input.output_positions, self.unpadded
        assert wanted is not None
        text = self.x if ragged is None else ragged.pad(self.x)
        batch, length, width = text.shape
        row, place = wanted // length, wanted % length
        counts = torch.bincount(row, minlength=batch)
        if context.mask.costs_less_than(int(counts.max())):  # then all positions ask, and those wanted go on
            keys = context.key_states if ragged is None else self.x
            self._set_output(block(text, replace(context, key_states=keys, output_queries=(row, place))), wanted, text)
            return
        order = torch.arange(len(wanted), device=text.device) - (counts.cumsum(0) - counts)[row]  # number in its row
        places = wanted.new_zeros(batch, int(counts.max()))  # (B, Q); rows with fewer ask again at position 0
        places[row, order] = place
        query_states = text.gather(1, places[:, :, None].expand(-1, -1, width))  # (B, Q, width)
        turn = context.rotation
        turn = None if turn is None else replace(turn, query=turn.key.at_positions(places))
        y = block(query_states, replace(context, mask=context.mask.for_queries(places, length), key_states=self.x,
                                        rotation=turn,
                                  output_queries=(row, order)))
        self._set_output(y, wanted, text)

    def _set_output(self, y: Tensor, output_positions: Tensor, text: Tensor) -> None:
        """(N, width) of the wanted positions -> what leaves the stack, zero elsewhere."""
        y = self.stack.finish(y)
        found = text.new_zeros(text.shape[:2].numel(), text.shape[2]).to(y.dtype).index_copy(0, output_positions, y)
        self.output.last_hidden_state, self._outputs_only = found.view(text.shape), True


def _query_stream_only(x: Tensor, context: LayerContext, stack_input: StackInput) -> tuple[Tensor, LayerContext]:
    """The positions behind the text alone."""
    first = stack_input.length
    mask = CompiledMask(dense=None if context.mask.dense is None else context.mask.dense[:, :, first:])
    distances = None if context.relative_positions is None else context.relative_positions.query_stream_only()
    apart = None if context.different_segment is None else context.different_segment[:, :, first:]
    turn = context.rotation
    turn = None if turn is None else replace(turn, query=turn.query.from_position(first))
    return x[:, first:], replace(context, mask=mask, relative_positions=distances, different_segment=apart,
                                 rotation=turn)


def _select_bias_rows(bias: Tensor, rows: Tensor) -> Tensor:
    """(1 or B, heads, Q, K) for some rows of the batch."""
    return bias if len(bias) == 1 else bias[rows]


def _select_row_positions(output_positions: Tensor, rows: Tensor, length: int) -> Tensor:
    """Flat positions of a batch as those of a batch of some of its rows."""
    numbers = torch.full((int(max(int(output_positions.max()) // length, int(rows.max()))) + 1,), -1,
                         device=output_positions.device)
    numbers[rows] = torch.arange(len(rows), device=output_positions.device)
    row = numbers[output_positions // length]
    return (row * length + output_positions % length)[row >= 0].sort().values


def _append_memory(old: Tensor | None, text: Tensor, max_length: int, num_positions: int) -> Tensor:
    """The newest `most` positions of what was remembered and the `first` positions of the text."""
    new = text[:, :num_positions].detach()
    if old is not None and new.shape[1] < max_length:
        new = torch.cat([old[:, -(max_length - new.shape[1]):].to(new.dtype), new], 1)
    return new[:, -max_length:].clone()  # a copy: a view would keep the whole step's activations alive
