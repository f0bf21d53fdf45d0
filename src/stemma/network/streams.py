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
from stemma.visibility import Full, Mask, Padded, Visibility

if TYPE_CHECKING:
    from stemma.network.distance import Distances
    from stemma.network.ragged import Ragged
    from stemma.network.rotary import Rotation
    from stemma.network.state import Across, LayerCache, State

QUERY = "query"  # the name of the second stream's output


@dataclass(frozen=True, init=False)
class Stream:
    sees: Visibility
    inputs: Mapping[str, Tensor]  # (B, L, ...) by name, or (B, ...) of whole rows: "tokens", "segments" and "tasks",
    #                               where the text has them, and those of [network.inputs.NAME]
    positions: Tensor | None  # (B, L); None counts from 0, or from what a cache has kept
    wanted: Tensor | None  # flat places (of B x L, ascending) whose output will be read; None: all of them
    query: Tensor | None  # (B, P) places to be predicted unseen: a second stream that is read and never seen
    backward: Tensor | None  # (B,) True where the row is read from its end; None: nowhere
    keep: int | None  # how many places, from the first, a memory or a cache may take up; None: all, 0: none
    skips_filling: bool  # nobody will read what stands there: it need not be computed, and may be zero
    padding: Tensor | None  # (B, L) False at padding that no position attends to anyway, since it comes last in causal
    #                         text; padding that could be attended to is a rule of `sees`

    def __init__(self, ids: Tensor | None = None, sees: Visibility | None = None, positions: Tensor | None = None,
                 segments: Tensor | None = None, tasks: Tensor | None = None, wanted: Tensor | None = None,
                 query: Tensor | None = None, backward: Tensor | None = None, keep: int | None = None,
                 skips_filling: bool = False, padding: Tensor | None = None,
                 inputs: Mapping[str, Tensor] | None = None):
        """`ids`, `segments` and `tasks` stand for the inputs of these names."""
        text = {TOKENS: ids, SEGMENTS: segments, TASKS: tasks}
        given = {**(inputs or {}), **{name: value for name, value in text.items() if value is not None}}
        values = {"sees": Full() if sees is None else sees, "inputs": given, "positions": positions, "wanted": wanted,
                  "query": query, "backward": backward, "keep": keep, "skips_filling": skips_filling,
                  "padding": padding}
        for name, value in values.items():
            object.__setattr__(self, name, value)  # it is frozen

    @property
    def ids(self) -> Tensor | None:
        """(B, L); None: other inputs tell all that is known."""
        return self.inputs.get(TOKENS)

    @property
    def segments(self) -> Tensor | None:
        """(B, L); None is segment 0 throughout."""
        return self.inputs.get(SEGMENTS)

    @property
    def tasks(self) -> Tensor | None:
        """(B,) which task's vector each row carries; None is task 0: any serves after training."""
        return self.inputs.get(TASKS)

    def with_ids(self, ids: Tensor) -> Stream:
        """The same with other tokens."""
        return replace(self, inputs={**self.inputs, TOKENS: ids})

    def to(self, device: torch.device | str) -> Stream:
        moved: dict[str, Any] = {name: value.to(device, non_blocking=True) for name, value in self._tensors().items()}
        moved["inputs"] = {name: value.to(device, non_blocking=True) for name, value in self.inputs.items()}
        return replace(self, sees=self.sees.to(device), **moved)

    def rows(self, chosen: slice) -> Stream:
        cut: dict[str, Any] = {name: value[chosen] for name, value in self._tensors().items()
                               if value is not self.wanted}
        cut["inputs"] = {name: value[chosen] for name, value in self.inputs.items()}
        if self.wanted is not None:
            first, last = (row * self.length for row in (chosen.start, chosen.stop))
            cut["wanted"] = self.wanted[(self.wanted >= first) & (self.wanted < last)] - first
        return replace(self, sees=self.sees.rows(chosen), **cut)

    @property
    def batch(self) -> int:
        """How many rows there are."""
        return self._any.shape[0]

    @property
    def length(self) -> int:
        return self._any.shape[1]

    @property
    def device(self) -> torch.device:
        return self._any.device

    @property
    def _any(self) -> Tensor:
        """What tells the stream's shape: all inputs of positions have the same rows and positions."""
        return next(value for value in self.inputs.values() if value.ndim > 1)

    def real(self) -> Tensor | None:
        """(B, L) False at filling; None: nothing is."""
        found = next((rule for rule in self.sees.rules() if isinstance(rule, Padded)), None)
        return None if found is None else found.real[:, found.past:found.past + self.length]

    def counted(self) -> Tensor | None:
        """(B, L) False at padding of either kind, which means over positions leave out; None: there is none."""
        return self.real() if self.padding is None else self.padding

    def _tensors(self) -> dict[str, Tensor]:
        """What is there, by name."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class Context:
    """What a block's sublayers may look at besides their input."""

    mask: Mask
    keys: Tensor | None = None  # (B, K, width) what is looked at, where it is not the input itself; before any norm
    blank: int = 0  # so many positions of zeros stand before the first text that the cache is given
    chosen: tuple[Tensor, Tensor] | None = None  # (row, query) of the queries that go on after attention: of each row
    #                                              as many ask as of any, and some of them ask in vain
    distances: Distances | None = None  # from every query to every key, where positions are relative
    bias: Tensor | None = None  # (1 or B, heads, Q, K) added to the scores, where distances are bucketed
    rotation: Rotation | None = None  # what turns queries and keys, where positions are rotary
    apart: Tensor | None = None  # (B, 1, Q, K) True where query and key belong to different segments
    across: Across | None = None  # the other part's output, which a decoder looks at
    layer: int = 0  # which one this is
    cache: LayerCache | None = None  # what this layer has read before
    keep: int | None = None  # how many of the new places the cache takes up, if not all
    causal: bool = False  # for sublayers that look at neighbours without a mask
    real: Tensor | None = None  # (B, L) False at filling; for the same
    ragged: Ragged | None = None  # where places are computed without filling: input and output are (N, width) then


@dataclass
class Hidden:
    outputs: dict[str, Tensor]  # (B, L, width) of each part's last layer
    layers: dict[str, list[Tensor]] = field(default_factory=dict)  # the embedding first, then every layer; when asked
    state: State | None = None  # memory or cache to pass to the next call
    auxiliary: dict[str, Tensor] = field(default_factory=dict)  # costs a part adds by itself: means over all places
    measures: dict[str, Tensor] = field(default_factory=dict)  # (B, L) what may be of interest, such as steps taken;
    #                                                            not a number at padding
    sampled: Tensor | None = None  # (N,) what a generator wrote at the scored places, in their order
    attentions: dict[str, list[Tensor]] = field(default_factory=dict)  # when asked: every layer's scores before the
    #                                             softmax, (B, heads, Q, K), by part; "cross" of a decoder to an encoder

    def __getitem__(self, part: str) -> Tensor:
        return self.outputs[part]

    def all_layers(self, part: str) -> list[Tensor]:
        """Every layer as it is used, the embedding first: the last one is what leaves the stack, after any norm."""
        return [*self.layers[part][:-1], self.outputs[part]]
