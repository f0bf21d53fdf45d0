"""What enters a network and what leaves it.

A stream is one sequence entering one part ("encoder", "decoder", "image"); the network gives back a Hidden with each
part's output, and, where asked or where a family has them, every layer, the state to carry on, and auxiliary costs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from stemma.visibility import Full, Mask, Visibility


@dataclass(frozen=True)
class Stream:
    ids: Tensor  # (B, L)
    sees: Visibility = field(default_factory=Full)
    positions: Tensor | None = None  # (B, L); None counts from 0
    segments: Tensor | None = None  # (B, L); None is segment 0 throughout
    wanted: Tensor | None = None  # flat places (of B x L, ascending) whose output will be read; None: all of them
    query: Tensor | None = None  # (B, P) places to be predicted unseen: a second stream that is read and never seen

    def to(self, device: torch.device | str) -> Stream:
        moved = {name: value.to(device, non_blocking=True) for name, value in self._tensors().items()}
        return replace(self, sees=self.sees.to(device), **moved)

    def rows(self, chosen: slice) -> Stream:
        cut = {name: value[chosen] for name, value in self._tensors().items() if value is not self.wanted}
        if self.wanted is not None:
            first, last = (row * self.ids.shape[1] for row in (chosen.start, chosen.stop))
            cut["wanted"] = self.wanted[(self.wanted >= first) & (self.wanted < last)] - first
        return replace(self, sees=self.sees.rows(chosen), **cut)

    def _tensors(self) -> dict[str, Tensor]:
        """What is there, by name."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@dataclass
class Context:
    """What a block's sublayers may look at besides their input."""

    mask: Mask
    keys: Tensor | None = None  # (B, K, width) what is looked at, where it is not the input itself


@dataclass
class Hidden:
    outputs: dict[str, Tensor]  # (B, L, width) of each part's last layer
    layers: dict[str, list[Tensor]] = field(default_factory=dict)  # the embedding first, then every layer; when asked
    state: object | None = None  # memory or cache to pass to the next call
    auxiliary: dict[str, Tensor] = field(default_factory=dict)  # costs a part adds by itself (ponder time)

    def __getitem__(self, part: str) -> Tensor:
        return self.outputs[part]
