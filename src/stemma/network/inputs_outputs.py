"""What enters a network and what leaves it.

A stream is one sequence entering one part ("encoder", "decoder", "image"): a length, an attention mask, and inputs by
name, of which token ids are one. The network gives back a Hidden with each part's output, and,
where asked or where a family has them, every layer, the state to carry on, and auxiliary costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stemma.schema.network import SEGMENTS, TASKS, TOKENS
from stemma.visibility import Bidirectional, CompiledMask, PaddingRule, Visibility

if TYPE_CHECKING:
    from stemma.network.cache import CrossAttentionCache, LayerKVCache, State
    from stemma.network.relative_position import RelativePositions
    from stemma.network.rotary import RotaryRotation
    from stemma.network.unpad import UnpaddedBatch

QUERY = "query"  # the name of the second stream's output


@dataclass(frozen=True, init=False)
class Stream:
    attention_mask: Visibility
    inputs: Mapping[str, Tensor]  # (B, L, ...) by name, or (B, ...) of whole rows: "tokens", "segments" and "tasks",
    #                               where the text has them, and those of [network.inputs.NAME]
    position_ids: Tensor | None  # (B, L); None counts from 0, or from what a cache has kept
    output_positions: Tensor | None  # flat places (of B x L, ascending) whose output will be read; None: all of them
    query_positions: Tensor | None  # (B, P) places to be predicted unseen: a second stream that is read and never seen
    reversed_rows: Tensor | None  # (B,) True where the row is read from its end; None: nowhere
    reuse_length: int | None  # how many places, from the first, a memory or a cache may take up; None: all, 0: none
    skip_padding: bool  # nobody will read what stands there: it need not be computed, and may be zero
    causal_token_mask: Tensor | None  # (B, L) False at padding that no position attends to anyway, since it comes last
    #                         in causal text; padding that could be attended to is a rule of `sees`

    def __init__(self, input_ids: Tensor | None = None, attention_mask: Visibility | None = None,
                 position_ids: Tensor | None = None,
                 segment_ids: Tensor | None = None, task_ids: Tensor | None = None,
                 output_positions: Tensor | None = None,
                 query_positions: Tensor | None = None, reversed_rows: Tensor | None = None,
                 reuse_length: int | None = None,
                 skip_padding: bool = False, causal_token_mask: Tensor | None = None,
                 inputs: Mapping[str, Tensor] | None = None):
        """`input_ids`, `segment_ids` and `task_ids` stand for the inputs of these names."""
        text = {TOKENS: input_ids, SEGMENTS: segment_ids, TASKS: task_ids}
        given = {**(inputs or {}), **{name: value for name, value in text.items() if value is not None}}
        values = {"attention_mask": Bidirectional() if attention_mask is None else attention_mask, "inputs": given,
                  "position_ids": position_ids, "output_positions": output_positions,
                  "query_positions": query_positions, "reversed_rows": reversed_rows, "reuse_length": reuse_length,
                  "skip_padding": skip_padding,
                  "causal_token_mask": causal_token_mask}
        for name, value in values.items():
            object.__setattr__(self, name, value)  # it is frozen

    @property
    def input_ids(self) -> Tensor | None:
        """(B, L); None: other inputs tell all that is known."""
        return self.inputs.get(TOKENS)

    @property
    def segment_ids(self) -> Tensor | None:
        """(B, L); None is segment 0 throughout."""
        return self.inputs.get(SEGMENTS)

    @property
    def task_ids(self) -> Tensor | None:
        """(B,) which task's vector each row carries; None is task 0: any serves after training."""
        return self.inputs.get(TASKS)

    def with_input_ids(self, input_ids: Tensor) -> Stream:
        """The same with other tokens."""
        return replace(self, inputs={**self.inputs, TOKENS: input_ids})

    def to(self, device: torch.device | str) -> Stream:
        moved: dict[str, Any] = {name: value.to(device, non_blocking=True) for name, value in self._tensors().items()}
        moved["inputs"] = {name: value.to(device, non_blocking=True) for name, value in self.inputs.items()}
        return replace(self, attention_mask=self.attention_mask.to(device), **moved)

    def rows(self, rows: slice) -> Stream:
        cut: dict[str, Any] = {name: value[rows] for name, value in self._tensors().items()
                               if value is not self.output_positions}
        cut["inputs"] = {name: value[rows] for name, value in self.inputs.items()}
        if self.output_positions is not None:
            first, last = (row * self.length for row in (rows.start, rows.stop))
            cut["output_positions"] = self.output_positions[(self.output_positions >= first)
                                                            & (self.output_positions < last)] - first
        return replace(self, attention_mask=self.attention_mask.rows(rows), **cut)

    @property
    def batch(self) -> int:
        """How many rows there are."""
        return self._first_input.shape[0]

    @property
    def length(self) -> int:
        return self._first_input.shape[1]

    @property
    def device(self) -> torch.device:
        return self._first_input.device

    @property
    def _first_input(self) -> Tensor:
        """What tells the stream's shape: all inputs of positions have the same rows and positions."""
        return next(value for value in self.inputs.values() if value.ndim > 1)

    def attention_token_mask(self) -> Tensor | None:
        """(B, L) False at filling; None: nothing is."""
        padding_rule = next((rule for rule in self.attention_mask.rules() if isinstance(rule, PaddingRule)), None)
        return None if padding_rule is None else padding_rule.token_mask[:,
            padding_rule.cached_length:padding_rule.cached_length + self.length]

    def token_mask(self) -> Tensor | None:
        """(B, L) False at padding of either kind, which means over positions leave out; None: there is none."""
        return self.attention_token_mask() if self.causal_token_mask is None else self.causal_token_mask

    def _tensors(self) -> dict[str, Tensor]:
        """What is there, by name."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class LayerContext:
    """What a block's sublayers may look at besides their input."""

    mask: CompiledMask
    key_states: Tensor | None = None  # (B, K, width) what is looked at, where it is not the input itself; before any
    #                                   norm
    zero_memory_length: int = 0  # so many positions of zeros stand before the first text that the cache is given
    output_queries: tuple[Tensor, Tensor] | None = None  # (row, query) of the queries that go on after attention: of
    #                                              each row as many ask as of any, and some of them ask in vain
    relative_positions: RelativePositions | None = None  # from every query to every key, where positions are relative
    score_bias: Tensor | None = None  # (1 or B, heads, Q, K) added to the scores, where distances are bucketed
    rotation: RotaryRotation | None = None  # what turns queries and keys, where positions are rotary
    different_segment: Tensor | None = None  # (B, 1, Q, K) True where query and key belong to different segments
    cross_cache: CrossAttentionCache | None = None  # the other part's output, which a decoder looks at
    layer_index: int = 0  # which one this is
    cache: LayerKVCache | None = None  # what this layer has read before
    reuse_length: int | None = None  # how many of the new places the cache takes up, if not all
    causal: bool = False  # for sublayers that look at neighbours without a mask
    attention_token_mask: Tensor | None = None  # (B, L) False at filling; for the same
    unpadded: UnpaddedBatch | None = None  # where places are computed without filling: input and output are (N, width)
    #                                        then


@dataclass
class NetworkOutput:
    last_hidden_states: dict[str, Tensor]  # (B, L, width) of each part's last layer
    hidden_states: dict[str, list[Tensor]] = field(default_factory=dict)  # the embedding first, then every layer; when
    #                                                                       asked
    state: State | None = None  # memory or cache to pass to the next call
    auxiliary_losses: dict[str, Tensor] = field(default_factory=dict)  # costs a part adds by itself: means over all
    #                                                                    places
    metrics: dict[str, Tensor] = field(default_factory=dict)  # (B, L) what may be of interest, such as steps taken;
    #                                                            not a number at padding
    generator_samples: Tensor | None = None  # (N,) what a generator wrote at the scored places, in their order
    attention_scores: dict[str, list[Tensor]] = field(default_factory=dict)  # when asked: every layer's scores before
    #                                             the softmax, (B, heads, Q, K), by part; "cross" of a decoder to an
    #                                             encoder

    def __getitem__(self, part: str) -> Tensor:
        return self.last_hidden_states[part]

    def all_hidden_states(self, part: str) -> list[Tensor]:
        """Every layer as it is used, the embedding first: the last one is what leaves the stack, after any norm."""
        return [*self.hidden_states[part][:-1], self.last_hidden_states[part]]
