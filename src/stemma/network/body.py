"""A body: what turns the embedded input of one part of a network into hidden states.

A stack of blocks is one, and so is anything else with this interface: a recurrent cell, a mean of vectors. What it
needs of a recipe is stated by its settings (`schema/parts.py`, BodySettings).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from stemma.network.cache import CrossAttentionCache, KVCache, Memory
from stemma.network.inputs_outputs import LayerContext
from stemma.network.rotary import RotaryRotation
from stemma.visibility import CompiledMask


@dataclass(frozen=True)
class StackInput:
    """What a body is given besides its input: what holds for all layers of one forward pass."""

    layer_context: LayerContext
    masks: Sequence[CompiledMask]  # taken in turn by the layers
    length: int  # of the text; positions behind it ask, and are never asked
    num_keys: int  # how many positions are looked at: the text, and before it what was kept
    position_ids: Tensor | None = None  # where each token stands, if not counted from 0
    rotations: Sequence[RotaryRotation] = ()  # taken in turn by the layers, where positions are rotary
    output_positions: Tensor | None = None  # the flat positions that will be read, if not all
    memory: Memory | None = None  # what each layer read before
    memory_update: tuple[int, int] | None = None  # remember so many of these first positions
    cache: KVCache | None = None
    zero_memory_length: int = 0  # zeros that stand before the first text that a cache is given
    skip_padding: bool = False
    cross_cache: CrossAttentionCache | None = None  # what a decoder looks at
    keep_hidden_states: bool = False  # every layer's output is asked for
    keep_attention_scores: bool = False  # and so are the scores of attention
    token_mask: Tensor | None = None  # (B, L) False at padding, which means and costs leave out; None: there is none


@dataclass
class StackOutput:
    """What leaves a body, and what was collected on the way."""

    last_hidden_state: Tensor  # (B, Q, width)
    hidden_states: list[Tensor] | None = None  # what entered, then every layer's output, where asked for
    memory: list[Tensor] = field(default_factory=list)  # what each layer is to remember
    attention_scores: list[dict[str, Tensor]] = field(default_factory=list)  # of each layer's attention, where asked
    #                                                                          for
    auxiliary_losses: dict[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, Tensor] = field(default_factory=dict)


class Body(nn.Module):
    """Built with the network's settings and the part that it is the body of. It may have no parameters."""

    __call__: Callable[..., StackOutput]

    def forward(self, x: Tensor, stack_input: StackInput) -> StackOutput:
        """(B, L, width) -> (B, L, width). What is to be known when the text goes on, it puts into `given.cache`."""
        raise NotImplementedError

    def layer_groups(self) -> list[list[nn.Module]]:
        """The modules of each layer, the lowest first; every parameter belongs to one of them."""
        return [[self]]
