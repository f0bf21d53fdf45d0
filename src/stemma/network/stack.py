"""Depth: how blocks follow one another, what each of them looks at, and what earlier segments left.

A stack can be walked block by block (`Stack.walk`), so that something may look at a layer, stop early, or go on with
some rows only, and still profit from what is left out: padding, and positions that nobody reads.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from stemma import registry
from stemma.network.attention.full import masked
from stemma.network.block import Block
from stemma.network.body import Body, StackInput, StackOutput
from stemma.network.dropout import Dropout
from stemma.network.kinds import build_norm
from stemma.network.module import ModuleSequence
from stemma.network.positions import position_of
from stemma.network.ragged import Ragged, worth_it
from stemma.network.streams import Context
from stemma.schema.network import NetworkSettings
from stemma.schema.parts import NetworkPart
from stemma.visibility import Mask


class Stack(Body):
    """Blocks upon each other. Those of a part that attends to another part's output have one sublayer more, and its
    text is read from one end."""

    def __init__(self, settings: NetworkSettings, part: NetworkPart):
        super().__init__()
        crossed = part.attends_to is not None
        first = Block(settings, crossed)
        self.blocks = ModuleSequence[Block]([first, *(Block(settings, crossed, first) for _ in range(part.layers - 1))])
        self.near = position_of(settings).score_bias(both_ways=not crossed)
        self.final_norm = build_norm(settings.norm, settings.width) if settings.norm.place == "pre" else None
        self.output_dropout = Dropout(settings.output_dropout)
        # what can be left out: padding, and positions that nobody reads
        position_wise = registry.get("feedforward", settings.transition).settings.position_wise
        self.supports = settings.attention.supports if position_wise else frozenset()

    def forward(self, x: Tensor, given: StackInput) -> StackOutput:
        """(B, Q, width) -> (B, Q, width)."""
        walk = self.walk(x, given)
        while not walk.done:
            walk.advance()
        return walk.finish()

    def walk(self, x: Tensor, given: StackInput) -> Walk:
        return Walk(self, x, given)

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

    def context(self, number: int, x: Tensor, given: StackInput) -> Context:
        """What one layer looks at: the text, and before it what the same layer read earlier."""
        mask = given.masks[number % len(given.masks)]
        turn = given.rotations[number % len(given.rotations)] if given.rotations else None
        if given.context.ragged is not None:
            return replace(given.context, mask=mask, layer=number, rotation=turn)
        text = x[:, : given.length] if x.shape[1] > given.length else x
        seen = text if given.memory is None else torch.cat([given.memory.layers[number].to(x.dtype), text], 1)
        return replace(given.context, mask=mask, keys=None if seen is x else seen, blank=given.blank, layer=number,
                       cache=None if given.cache is None else given.cache[number], across=given.across, rotation=turn)

    def remembered(self, number: int, x: Tensor, given: StackInput) -> list[Tensor]:
        """What a layer is to remember of what enters it; nothing where nothing is kept."""
        if given.keep is None:
            return []
        before = given.memory.layers[number] if given.memory else None
        return [_newest(before, x[:, : given.length], *given.keep)]


class Walk:
    """A forward pass through a stack, block by block.

    Where only some positions will be read, the last block computes those alone and leaves the rest zero: of a deep
    stack's cost that is little, of a shallow one's (arXiv:1810.04805 scores 15%) about a fifth. In the same way it
    leaves out the text where only the positions behind it (a second stream) ask. Padding is not computed at all where
    nobody reads it and there is much of it.
    """

    def __init__(self, stack: Stack, x: Tensor, given: StackInput):
        self.stack, self.number, self._is_narrowed = stack, 0, False
        self.biases: list[Tensor] = []  # taken in turn by the layers
        if stack.near is not None:  # the attention mask goes into it too: once for all layers that have the same
            bias = stack.near(given.length, given.keys, x.dtype)
            self.biases = [masked(bias, mask) for mask in given.masks]
            given = replace(given, context=replace(given.context, bias=self.biases[0]), masks=[Mask()])
        self.output = StackOutput(x, layers=[x] if given.keep_layers else None)
        self._begin(x, given)

    def _begin(self, x: Tensor, given: StackInput) -> None:
        """Leave padding out from here on."""
        self.ragged = self._ragged(x, given)
        if self.ragged is not None:
            x, given = self.ragged.squeeze(x), replace(given, context=replace(given.context, ragged=self.ragged))
        self.x, self.given = x, given

    @property
    def done(self) -> bool:
        return self.number == len(self.stack.blocks)

    def advance(self) -> None:
        """Through one more block."""
        stack, given, block = self.stack, self.given, self.stack.blocks[self.number]
        context = stack.context(self.number, self.x, given)
        if len(self.biases) > 1:
            context = replace(context, bias=self.biases[self.number % len(self.biases)])
        self.output.remembered += stack.remembered(self.number, self.x, given)
        self.number += 1
        last = self.done and not given.keep_layers and not given.observe
        if last and self._narrow():
            self._narrowed(block, context)
            return
        if last and self.ragged is None and self.x.shape[1] > given.length:
            self.x, context = _only_behind(self.x, context, given)
        if given.observe:
            self.x, scores = block.observe(self.x, context)
            self.output.scores.append(scores)
        else:
            self.x = block(self.x, context)
        if self.output.layers is not None:
            self.output.layers.append(self.x)

    def hidden(self) -> Tensor:
        """(B, Q, width) as it would leave the stack if this were its last layer."""
        x = self.stack.finish(self.x)
        return x if self.ragged is None else self.ragged.spread(x)

    def finish(self) -> StackOutput:
        """What the stack gives back, once all blocks are done or whoever walks stops here."""
        if not self._is_narrowed:
            self.output.x = self.hidden()
        return self.output

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the batch alone: (R,) their numbers. The others have left, early."""
        given = self.given
        assert given.cache is None and given.memory is None and given.across is None and given.keep is None, \
            "rows leave a batch that nothing is kept of"
        x = self.x if self.ragged is None else self.ragged.spread(self.x)
        context = given.context
        context = replace(context, ragged=None, apart=None if context.apart is None else context.apart[rows],
                          real=None if context.real is None else context.real[rows],
                          bias=None if context.bias is None else _rows_of(context.bias, rows),
                          distances=None if context.distances is None else context.distances.rows(rows))
        self.biases = [_rows_of(bias, rows) for bias in self.biases]
        wanted = None if given.wanted is None else _of_rows(given.wanted, rows, given.length)
        self._begin(x[rows], replace(
            given, context=context, masks=[mask.rows(rows) for mask in given.masks], wanted=wanted,
            rotations=[turn.rows(rows) for turn in given.rotations],
            positions=given.positions if given.positions is None or given.positions.dim() < 2 else
            given.positions[rows]))

    def _ragged(self, x: Tensor, given: StackInput) -> Ragged | None:
        """The batch without its padding, where the text alone is looked at and nothing is kept of it."""
        real = given.context.real
        plain = "padding_free" in self.stack.supports and given.cache is None and given.memory is None \
            and given.keep is None and given.across is None and not given.keep_layers and not given.observe \
            and x.shape[1] == given.length
        if not given.skips_filling or not plain or real is None or not worth_it(real):
            return None
        # what is added to the scores is made for all rows alike; and many small products do not suit a graphics card
        apart = given.context.bias is None and given.context.distances is None and not real.is_cuda
        return Ragged(real, apart=apart)

    def _narrow(self) -> bool:
        given = self.given
        plain = "narrowed" in self.stack.supports and given.cache is None and given.memory is None \
            and given.context.distances is None and given.context.bias is None and given.across is None
        places = self.x.shape[:2].numel() if self.ragged is None else len(self.ragged.places)
        return plain and given.wanted is not None and 2 * len(given.wanted) < places

    def _narrowed(self, block: Block, context: Context) -> None:
        """The last block for the wanted positions only: they ask, all positions answer."""
        wanted, ragged = self.given.wanted, self.ragged
        assert wanted is not None
        text = self.x if ragged is None else ragged.spread(self.x)
        batch, length, width = text.shape
        row, place = wanted // length, wanted % length
        counts = torch.bincount(row, minlength=batch)
        if context.mask.costs_less_than(int(counts.max())):  # then all positions ask, and those wanted go on
            keys = context.keys if ragged is None else self.x
            self._finished(block(text, replace(context, keys=keys, chosen=(row, place))), wanted, text)
            return
        order = torch.arange(len(wanted), device=text.device) - (counts.cumsum(0) - counts)[row]  # number in its row
        places = wanted.new_zeros(batch, int(counts.max()))  # (B, Q); rows with fewer ask again at position 0
        places[row, order] = place
        asking = text.gather(1, places[:, :, None].expand(-1, -1, width))  # (B, Q, width)
        turn = context.rotation
        turn = None if turn is None else replace(turn, query=turn.key.at(places))
        y = block(asking, replace(context, mask=context.mask.at(places, length), keys=self.x, rotation=turn,
                                  chosen=(row, order)))
        self._finished(y, wanted, text)

    def _finished(self, y: Tensor, wanted: Tensor, text: Tensor) -> None:
        """(N, width) of the wanted positions -> what leaves the stack, zero elsewhere."""
        y = self.stack.finish(y)
        found = text.new_zeros(text.shape[:2].numel(), text.shape[2]).to(y.dtype).index_copy(0, wanted, y)
        self.output.x, self._is_narrowed = found.view(text.shape), True


def _only_behind(x: Tensor, context: Context, given: StackInput) -> tuple[Tensor, Context]:
    """The positions behind the text alone."""
    first = given.length
    mask = Mask(dense=None if context.mask.dense is None else context.mask.dense[:, :, first:])
    distances = None if context.distances is None else context.distances.only_places()
    apart = None if context.apart is None else context.apart[:, :, first:]
    turn = context.rotation
    turn = None if turn is None else replace(turn, query=turn.query.behind(first))
    return x[:, first:], replace(context, mask=mask, distances=distances, apart=apart, rotation=turn)


def _rows_of(bias: Tensor, rows: Tensor) -> Tensor:
    """(1 or B, heads, Q, K) for some rows of the batch."""
    return bias if len(bias) == 1 else bias[rows]


def _of_rows(wanted: Tensor, rows: Tensor, length: int) -> Tensor:
    """Flat positions of a batch as those of a batch of some of its rows."""
    numbers = torch.full((int(max(int(wanted.max()) // length, int(rows.max()))) + 1,), -1, device=wanted.device)
    numbers[rows] = torch.arange(len(rows), device=wanted.device)
    row = numbers[wanted // length]
    return (row * length + wanted % length)[row >= 0].sort().values


def _newest(before: Tensor | None, text: Tensor, most: int, first: int) -> Tensor:
    """The newest `most` positions of what was remembered and the `first` positions of the text."""
    new = text[:, :first].detach()
    if before is not None and new.shape[1] < most:
        new = torch.cat([before[:, -(most - new.shape[1]):].to(new.dtype), new], 1)
    return new[:, -most:].clone()  # a copy: a view would keep the whole step's activations alive
