"""A body: what turns the embedded input of one part of a network into hidden states.

A stack of blocks is one, and so is anything else with this interface: a recurrent cell, a mean of vectors. What it
needs of a recipe is stated by its settings (`schema/parts.py`, BodySettings).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from stemma.network.rotary import Rotation
from stemma.network.state import Across, Cache, Memory
from stemma.network.streams import Context
from stemma.visibility import Mask


@dataclass(frozen=True)
class StackInput:
    """What a body is given besides its input: what holds for all layers of one forward pass."""

    context: Context
    masks: Sequence[Mask]  # taken in turn by the layers
    length: int  # of the text; positions behind it ask, and are never asked
    keys: int  # how many positions are looked at: the text, and before it what was kept
    positions: Tensor | None = None  # where each token stands, if not counted from 0
    rotations: Sequence[Rotation] = ()  # taken in turn by the layers, where positions are rotary
    wanted: Tensor | None = None  # the flat positions that will be read, if not all
    memory: Memory | None = None  # what each layer read before
    keep: tuple[int, int] | None = None  # remember so many of these first positions
    cache: Cache | None = None
    blank: int = 0  # zeros that stand before the first text that a cache is given
    skips_filling: bool = False
    across: Across | None = None  # what a decoder looks at
    keep_layers: bool = False  # every layer's output is asked for
    observe: bool = False  # and so are the scores of attention
    counted: Tensor | None = None  # (B, L) False at padding, which means and costs leave out; None: there is none


@dataclass
class StackOutput:
    """What leaves a body, and what was collected on the way."""

    x: Tensor  # (B, Q, width)
    layers: list[Tensor] | None = None  # what entered, then every layer's output, where asked for
    remembered: list[Tensor] = field(default_factory=list)  # what each layer is to remember
    scores: list[dict[str, Tensor]] = field(default_factory=list)  # of each layer's attention, where asked for
    auxiliary: dict[str, Tensor] = field(default_factory=dict)
    measures: dict[str, Tensor] = field(default_factory=dict)


class Body(nn.Module):
    """Built with the network's settings and the part that it is the body of. It may have no parameters."""

    __call__: Callable[..., StackOutput]

    def forward(self, x: Tensor, given: StackInput) -> StackOutput:
        """(B, L, width) -> (B, L, width). What is to be known when the text goes on, it puts into `given.cache`."""
        raise NotImplementedError

    def layer_groups(self) -> list[list[nn.Module]]:
        """The modules of each layer, the lowest first; every parameter belongs to one of them."""
        return [[self]]
