"""Depth: the stack owns the residuals, where the norm stands, what earlier segments left, and how blocks follow.

Post-norm normalises the sum (arXiv:1706.03762); pre-norm normalises what enters the sublayer and once more at the very
end, which trains without a careful warm-up (arXiv:2002.04745).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from stemma.network.attention.cross import CrossAttention
from stemma.network.attention.full import FullAttention, masked
from stemma.network.block import Block
from stemma.network.buckets import BucketedDistances
from stemma.network.dropout import Dropout
from stemma.network.norm import build_norm
from stemma.network.ragged import Ragged, worth_it
from stemma.network.rotary import Rotation
from stemma.network.state import Across, Cache, Memory
from stemma.network.streams import Context
from stemma.schema.network import BucketedPosition, NetworkSettings
from stemma.visibility import Mask


@dataclass
class Pass:
    """One way through a stack: what holds for all its layers, and what is collected on the way."""

    context: Context
    masks: Sequence[Mask]  # taken in turn by the layers
    length: int  # of the text; places behind it ask, and are never asked
    keys: int  # how many places are looked at: the text, and before it what was kept
    positions: Tensor | None = None  # where each place stands, if not counted from 0
    rotations: Sequence[Rotation] = ()  # taken in turn by the layers, where positions are rotary
    wanted: Tensor | None = None  # the flat places that will be read, if not all
    memory: Memory | None = None  # what each layer read before
    keep: tuple[int, int] | None = None  # remember so many of these first places
    cache: Cache | None = None
    blank: int = 0  # zeros that stand before the first text that a cache is given
    skips_filling: bool = False
    across: Across | None = None  # what a decoder looks at
    layers: list[Tensor] | None = None  # every layer's output, where asked for
    remembered: list[Tensor] = field(default_factory=list)
    auxiliary: dict[str, Tensor] = field(default_factory=dict)
    measures: dict[str, Tensor] = field(default_factory=dict)


class Stack(nn.Module):
    """An encoder's; or, `crossed` with another part's output, a decoder's, which is read from one end."""

    def __init__(self, settings: NetworkSettings, crossed: bool = False):
        super().__init__()
        first = Block(settings, crossed)
        self.blocks = nn.ModuleList([first, *(Block(settings, crossed, first) for _ in range(settings.layers - 1))])
        position = settings.position
        self.near = (BucketedDistances(position, settings.heads, both_ways=not crossed)
                     if isinstance(position, BucketedPosition) else None)
        self.dropout = Dropout(settings.dropout)
        own = settings.attention.output_dropout
        self.attention_dropout = Dropout(settings.dropout if own is None else own)
        self.pre = settings.norm.place == "pre"
        self.final_norm = build_norm(settings.norm, settings.width) if self.pre else None
        self.output_dropout = Dropout(settings.output_dropout)
        self.narrows = settings.transition != "convolution"  # every place by itself, once attention is done

    def forward(self, x: Tensor, way: Pass) -> Tensor:
        """(B, Q, width) -> (B, Q, width).

        Where only some places will be read, the last block computes those alone and leaves the rest zero: of a deep
        stack's cost that is little, of a shallow one's (arXiv:1810.04805 scores 15%) about a fifth. In the same way
        it leaves out the text where only the places behind it (a second stream) ask. Filling is not computed at all
        where nobody reads it and there is much of it.
        """
        if self.near is not None:  # who sees whom goes into it too: once for all layers
            bias = self.near(way.length, way.keys, x.dtype)
            way.context, way.masks = replace(way.context, bias=masked(bias, way.masks[0])), [Mask()]
        ragged = self._ragged(x, way)
        narrow = self._narrow(way, x.shape[:2].numel() if ragged is None else len(ragged.places))
        if ragged is not None:
            x, way.context = ragged.squeeze(x), replace(way.context, ragged=ragged)
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            context = self.context(number, x, block, way)
            last = number == len(self.blocks) - 1 and way.layers is None
            if last and narrow:
                return self.narrowed(x, block, context, way)
            if last and ragged is None and x.shape[1] > way.length:
                x, context = self.only_behind(x, context, way)
            x = self.apply_block(x, block, context)
            if way.layers is not None:
                way.layers.append(x)
        x = self.finish(x)
        return x if ragged is None else ragged.spread(x)

    def finish(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width): what becomes of the last block's output."""
        return self.output_dropout(x if self.final_norm is None else self.final_norm(x))

    def apply_block(self, x: Tensor, block: Block, context: Context) -> Tensor:
        for sublayer, norm in block.sublayers():
            x = self.join(x, sublayer, norm, context)
        return x

    def join(self, x: Tensor, sublayer: nn.Module, norm: nn.Module, context: Context) -> Tensor:
        dropout = self.attention_dropout if isinstance(sublayer, FullAttention | CrossAttention) else self.dropout
        if self.pre:
            return x + dropout(sublayer(norm(x), context))
        return norm(x + dropout(sublayer(x, context)))

    def context(self, number: int, x: Tensor, block: Block, way: Pass) -> Context:
        """What one layer looks at: the text, and before it what the same layer read earlier."""
        turn = way.rotations[number % len(way.rotations)] if way.rotations else None
        if way.context.ragged is not None:
            return replace(way.context, mask=way.masks[number % len(way.masks)], layer=number, rotation=turn)
        text = x[:, : way.length] if x.shape[1] > way.length else x
        seen = text if way.memory is None else torch.cat([way.memory.layers[number].to(x.dtype), text], 1)
        if way.keep is not None:
            way.remembered.append(_newest(way.memory.layers[number] if way.memory else None, text, *way.keep))
        cache = None if way.cache is None else way.cache[number]
        if cache is not None and way.blank and cache.length == 0:
            nothing = self._as_keys(block, x.new_zeros(x.shape[0], way.blank, x.shape[2]))
            assert isinstance(block.attention, FullAttention)
            key, value = block.attention.project(nothing, 1, 3)
            cache.extend(key, value)
        keys = None if seen is x else self._as_keys(block, seen)
        return replace(way.context, mask=way.masks[number % len(way.masks)], keys=keys, cache=cache, layer=number,
                       across=way.across, rotation=turn)

    def _as_keys(self, block: Block, seen: Tensor) -> Tensor:
        return block.attention_norm(seen) if self.pre else seen

    def only_behind(self, x: Tensor, context: Context, way: Pass) -> tuple[Tensor, Context]:
        """The places behind the text alone."""
        first = way.length
        mask = Mask(dense=None if context.mask.dense is None else context.mask.dense[:, :, first:])
        distances = None if context.distances is None else context.distances.only_places()
        apart = None if context.apart is None else context.apart[:, :, first:]
        turn = context.rotation
        turn = None if turn is None else replace(turn, query=turn.query.behind(first))
        return x[:, first:], replace(context, mask=mask, distances=distances, apart=apart, rotation=turn)

    def _ragged(self, x: Tensor, way: Pass) -> Ragged | None:
        """The batch without its filling, where the text alone is looked at and nothing is kept of it."""
        real = way.context.real
        plain = self.narrows and way.cache is None and way.memory is None and way.keep is None and way.across is None \
            and way.layers is None and x.shape[1] == way.length
        if not way.skips_filling or not plain or real is None or not worth_it(real):
            return None
        # what is added to the scores is made for all rows alike; and many small products do not suit a graphics card
        return Ragged(real, apart=way.context.bias is None and way.context.distances is None and not real.is_cuda)

    def _narrow(self, way: Pass, places: int) -> bool:
        plain = self.narrows and way.cache is None and way.memory is None and way.context.distances is None \
            and way.context.bias is None and way.across is None
        return plain and way.wanted is not None and 2 * len(way.wanted) < places

    def narrowed(self, x: Tensor, block: Block, context: Context, way: Pass) -> Tensor:
        """The last block for the wanted places only: they ask, all places answer."""
        wanted, ragged = way.wanted, context.ragged
        assert wanted is not None
        text = x if ragged is None else ragged.spread(x)
        batch, length, width = text.shape
        row, place = wanted // length, wanted % length
        counts = torch.bincount(row, minlength=batch)
        order = torch.arange(len(wanted), device=x.device) - (counts.cumsum(0) - counts)[row]  # its number in the row
        places = wanted.new_zeros(batch, int(counts.max()))  # (B, Q); rows with fewer ask again at place 0
        places[row, order] = place
        (attention, attention_norm), *rest = block.sublayers()
        asking = text.gather(1, places[:, :, None].expand(-1, -1, width))  # (B, Q, width)
        turn = context.rotation
        turn = None if turn is None else replace(turn, query=turn.key.at(places))
        narrow = replace(context, mask=context.mask.at(places, length), keys=self._as_keys(block, x), rotation=turn)
        y = self.join(asking, attention, attention_norm, narrow)[row, order]  # (N, width): from here on, only these
        for sublayer, norm in rest:
            y = self.join(y, sublayer, norm, context)
        y = self.finish(y)
        return x.new_zeros(batch * length, width).to(y.dtype).index_copy(0, wanted, y).view(batch, length, width)


def _newest(before: Tensor | None, text: Tensor, most: int, first: int) -> Tensor:
    """The newest `most` places of what was remembered and the `first` places of the text."""
    new = text[:, :first].detach()
    if before is not None and new.shape[1] < most:
        new = torch.cat([before[:, -(most - new.shape[1]):].to(new.dtype), new], 1)
    return new[:, -most:].clone()  # a copy: a view would keep the whole step's activations alive
