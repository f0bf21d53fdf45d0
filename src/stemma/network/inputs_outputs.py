"""Inputs and outputs of a network.

A `Stream` is the input of one part ("encoder", "decoder", "image"): a batch of sequences with an attention mask and
inputs by name, of which token ids are one. The network returns a `NetworkOutput`: the last hidden state of each part
and, on request or if the architecture has them, all hidden states, the state for the next call, and auxiliary losses.
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
    from stemma.network.disentangled_position import DisentangledPositions
    from stemma.network.relative_position import RelativePositions
    from stemma.network.rotary import RotaryRotation
    from stemma.network.unpad import UnpaddedBatch

QUERY = "query"  # name of the query stream's output (XLNet)


@dataclass(frozen=True, init=False)
class Stream:
    """The input of one part of a network: a batch of sequences of one length."""

    attention_mask: Visibility
    inputs: Mapping[str, Tensor]  # by name, (B, L, ...) or one value per row (B, ...): "tokens", and if there are any
    #                               "segments", "tasks" and the inputs of [network.inputs.NAME]
    position_ids: Tensor | None  # (B, L); None: counted from 0, or from the length of the cache
    output_positions: Tensor | None  # positions whose output is needed, as ascending indices into B x L; None: all
    query_positions: Tensor | None  # (B, P) positions of the query stream (XLNet): it predicts their tokens without
    #                                 attending to them, and nothing attends to it
    reversed_rows: Tensor | None  # (B,) True if the row is in reversed order; None: no row is
    reuse_length: int | None  # number of leading positions that a memory or cache stores; None: all, 0: none
    skip_padding: bool  # the output at padding is not needed: it may be left uncomputed, as zeros
    causal_token_mask: Tensor | None  # (B, L) False at padding at the end of causal rows, which needs no attention
    #                                   mask; other padding is masked by a rule of `attention_mask`

    def __init__(self, input_ids: Tensor | None = None, attention_mask: Visibility | None = None,
                 position_ids: Tensor | None = None, segment_ids: Tensor | None = None, task_ids: Tensor | None = None,
                 output_positions: Tensor | None = None, query_positions: Tensor | None = None,
                 reversed_rows: Tensor | None = None, reuse_length: int | None = None, skip_padding: bool = False,
                 causal_token_mask: Tensor | None = None, inputs: Mapping[str, Tensor] | None = None):
        """`input_ids`, `segment_ids` and `task_ids` become the inputs "tokens", "segments" and "tasks"."""
        text_inputs = {TOKENS: input_ids, SEGMENTS: segment_ids, TASKS: task_ids}
        all_inputs = {**(inputs or {}), **{name: value for name, value in text_inputs.items() if value is not None}}
        values = {"attention_mask": Bidirectional() if attention_mask is None else attention_mask,
                  "inputs": all_inputs, "position_ids": position_ids, "output_positions": output_positions,
                  "query_positions": query_positions, "reversed_rows": reversed_rows, "reuse_length": reuse_length,
                  "skip_padding": skip_padding, "causal_token_mask": causal_token_mask}
        for name, value in values.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen

    @property
    def input_ids(self) -> Tensor | None:
        """(B, L); None: the stream has other inputs only."""
        return self.inputs.get(TOKENS)

    @property
    def segment_ids(self) -> Tensor | None:
        """(B, L); None: segment 0 everywhere."""
        return self.inputs.get(SEGMENTS)

    @property
    def task_ids(self) -> Tensor | None:
        """(B,) task id of each row (ERNIE 2.0); None: task 0. After pre-training any id can be used."""
        return self.inputs.get(TASKS)

    def with_input_ids(self, input_ids: Tensor) -> Stream:
        """The same stream with other tokens."""
        return replace(self, inputs={**self.inputs, TOKENS: input_ids})

    def to(self, device: torch.device | str) -> Stream:
        moved: dict[str, Any] = {name: value.to(device, non_blocking=True) for name, value in self._tensors().items()}
        moved["inputs"] = {name: value.to(device, non_blocking=True) for name, value in self.inputs.items()}
        return replace(self, attention_mask=self.attention_mask.to(device), **moved)

    def rows(self, rows: slice) -> Stream:
        """The stream of some rows of the batch."""
        values: dict[str, Any] = {name: value[rows] for name, value in self._tensors().items()
                                  if value is not self.output_positions}
        values["inputs"] = {name: value[rows] for name, value in self.inputs.items()}
        if self.output_positions is not None:
            first, last = (row * self.length for row in (rows.start, rows.stop))
            inside = (self.output_positions >= first) & (self.output_positions < last)
            values["output_positions"] = self.output_positions[inside] - first
        return replace(self, attention_mask=self.attention_mask.rows(rows), **values)

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self._first_input.shape[0]

    @property
    def length(self) -> int:
        return self._first_input.shape[1]

    @property
    def device(self) -> torch.device:
        return self._first_input.device

    @property
    def _first_input(self) -> Tensor:
        """An input with one value per position: all of them have the shape (B, L, ...)."""
        return next(value for value in self.inputs.values() if value.ndim > 1)

    def attention_token_mask(self) -> Tensor | None:
        """(B, L) False at padding that the attention mask excludes; None: it excludes none."""
        rule = next((rule for rule in self.attention_mask.rules() if isinstance(rule, PaddingRule)), None)
        return None if rule is None else rule.token_mask[:, rule.cached_length:rule.cached_length + self.length]

    def token_mask(self) -> Tensor | None:
        """(B, L) False at all padding, masked in attention or not. Means over positions exclude it. None: none."""
        return self.attention_token_mask() if self.causal_token_mask is None else self.causal_token_mask

    def _tensors(self) -> dict[str, Tensor]:
        """The fields that are tensors, by name."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class LayerContext:
    """Arguments of a block's sublayers besides their input."""

    mask: CompiledMask
    key_states: Tensor | None = None  # (B, K, width) input of keys and values, before any norm; None: the input itself
    zero_memory_length: int = 0  # number of zero states that the cache starts with
    output_queries: tuple[Tensor, Tensor] | None = None  # (row, query) indices of the queries that continue after
    #                                                      attention; the other queries only pad the rows
    relative_positions: RelativePositions | DisentangledPositions | None = None  # from every query to every key
    score_bias: Tensor | None = None  # (1 or B, heads, Q, K) added to the attention scores (T5)
    rotation: RotaryRotation | None = None  # rotary positions of queries and keys
    different_segment: Tensor | None = None  # (B, 1, Q, K) True if query and key belong to different segments
    cross_cache: CrossAttentionCache | None = None  # the encoder output that a decoder attends to
    layer_index: int = 0
    earlier: tuple[Tensor, ...] = ()  # the embedding and the sum after each sublayer so far, if sublayers are mixed
    cache: LayerKVCache | None = None  # keys and values of earlier calls
    reuse_length: int | None = None  # number of new positions that the cache stores; None: all
    causal: bool = False  # for sublayers without an attention mask, such as convolutions
    attention_token_mask: Tensor | None = None  # (B, L) False at padding; for the same sublayers
    unpadded: UnpaddedBatch | None = None  # if set, padding is left out: input and output are (N, width)


@dataclass
class NetworkOutput:
    """Output of a forward pass, by the name of the part."""

    last_hidden_states: dict[str, Tensor]  # (B, L, width)
    hidden_states: dict[str, list[Tensor]] = field(default_factory=dict)  # on request: the embedding, then every layer
    state: State | None = None  # memory or cache for the next call
    auxiliary_losses: dict[str, Tensor] = field(default_factory=dict)  # losses of the network itself, such as ACT's
    #                                                                    ponder cost; means over positions
    metrics: dict[str, Tensor] = field(default_factory=dict)  # (B, L) such as the number of ACT steps; NaN at padding
    generator_samples: Tensor | None = None  # (N,) the generator's samples at the target positions, in their order
    attention_scores: dict[str, list[Tensor]] = field(default_factory=dict)  # on request: each layer's scores before
    #                                                softmax, (B, heads, Q, K); "cross": from a decoder to the encoder

    def __getitem__(self, part: str) -> Tensor:
        return self.last_hidden_states[part]

    def all_hidden_states(self, part: str) -> list[Tensor]:
        """The embedding and the output of every layer; the last one is the output of the stack, after a final norm."""
        return [*self.hidden_states[part][:-1], self.last_hidden_states[part]]
