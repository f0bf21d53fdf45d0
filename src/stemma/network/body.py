"""A body turns the embedded input of one part of a network into hidden states.

A stack of blocks is a body. So is any other module with this interface: a recurrent network, a mean of vectors. Its
settings class states which recipe keys it needs (`schema/parts.py`, BodySettings).
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
    """Arguments of a body besides its input, common to all layers of one forward pass."""

    layer_context: LayerContext
    masks: Sequence[CompiledMask]  # layer i uses masks[i % len(masks)]
    length: int  # number of text positions; positions after them are queries only (the query stream)
    num_keys: int  # text positions, and those of a memory or cache before them
    position_ids: Tensor | None = None  # None: counted from 0
    rotations: Sequence[RotaryRotation] = ()  # of rotary positions; layer i uses rotations[i % len(rotations)]
    output_positions: Tensor | None = None  # positions whose output is needed, as indices into B x L; None: all
    memory: Memory | None = None  # each layer's input of earlier segments (Transformer-XL)
    memory_update: tuple[int, int] | None = None  # (memory length, number of leading positions to store)
    cache: KVCache | None = None
    zero_memory_length: int = 0  # number of zero states that a cache starts with
    skip_padding: bool = False
    cross_cache: CrossAttentionCache | None = None  # the encoder output that a decoder attends to
    keep_hidden_states: bool = False  # return every layer's output
    keep_attention_scores: bool = False  # return every layer's attention scores
    reversed_rows: Tensor | None = None  # (B,) True if the row is in reversed order; None: no row is
    token_mask: Tensor | None = None  # (B, L) False at padding, which means and losses exclude; None: no padding


@dataclass
class StackOutput:
    """Output of a body."""

    last_hidden_state: Tensor  # (B, Q, width)
    hidden_states: list[Tensor] | None = None  # on request: the input, then every layer's output
    memory: list[Tensor] = field(default_factory=list)  # each layer's new memory
    attention_scores: list[dict[str, Tensor]] = field(default_factory=list)  # on request, of each layer
    auxiliary_losses: dict[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, Tensor] = field(default_factory=dict)
    # (output, cell) of each recurrent layer after the text, both directions side by side; None: not recurrent
    final_states: list[tuple[Tensor, Tensor]] | None = None


class Body(nn.Module):
    """Base class of bodies. It is built with the network's settings and the part; it may have no parameters."""

    __call__: Callable[..., StackOutput]

    def forward(self, x: Tensor, stack_input: StackInput) -> StackOutput:
        """(B, L, width) -> (B, L, width). State for the next call of incremental decoding goes into the cache."""
        raise NotImplementedError

    def layer_groups(self) -> list[list[nn.Module]]:
        """The modules of each layer, from the bottom. Every parameter belongs to exactly one layer."""
        return [[self]]
