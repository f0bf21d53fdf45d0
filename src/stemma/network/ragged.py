"""Rows of different length without their filling: what looks at each place by itself is computed for the places in use
alone, and attention for rows of like length at a time.

Filling up to the longest row costs as much as text does, and a batch must not be chosen by length: in many data sets
answers go with it, and batches of like rows would pull the network to and fro.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from stemma.network.module import TensorFunction
from stemma.network.rotary import Rotation
from stemma.visibility import Mask

WORTH = 0.9  # of all places: with more of them in use, laying them out costs more than it saves
GROUPS, LEAST = 4, 4  # groups of rows of like length, and the rows that one has at least
SMALL = 1 << 17  # scores (rows x length x length) so few that one group is quicker than several


class _Squeeze(TensorFunction):
    """Some rows of a matrix, each once. Its own backward pass: torch's would add where there is nothing to add to."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.rows, ctx.count = rows, len(x)
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _placed(grads[0], ctx.rows, ctx.count), None


class _Spread(TensorFunction):
    """The way back: zeros everywhere else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, count: int) -> Tensor:
        ctx.rows = rows
        return _placed(x, rows, count)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0].index_select(0, ctx.rows), None, None


def _placed(x: Tensor, rows: Tensor, count: int) -> Tensor:
    return x.new_zeros(count, *x.shape[1:]).index_copy_(0, rows, x)


@dataclass(frozen=True)
class Group:
    """Rows of the batch, cut to the longest of them."""

    rows: Tensor | None  # (R,) their numbers; None: all of them, in order
    length: int
    places: Tensor  # (n,) those in use, of R x length
    count: int  # R x length

    def spread(self, x: Tensor) -> Tensor:
        """(n, width) -> (R, length, width)"""
        if len(self.places) < self.count:
            x = _Spread.apply(x, self.places, self.count)
        return x.view(-1, self.length, x.shape[-1])

    def squeeze(self, x: Tensor) -> Tensor:
        """(R, length, width) -> (n, width)"""
        x = x.flatten(0, 1)
        return x if len(self.places) == self.count else _Squeeze.apply(x, self.places)

    def mask(self, whole: Mask) -> Mask:
        """What these rows see of what all rows see."""
        dense = whole.dense
        if self.rows is not None and whole.real is not None:
            return replace(whole, real=whole.real[self.rows, : self.length])
        if self.rows is None or dense is None:
            return whole
        if dense.shape[2] == 1 and len(self.places) == self.count:  # it hides filling, and there is none
            return Mask()
        dense = dense if dense.shape[0] == 1 else dense[self.rows]
        return Mask(dense=dense[:, :, : self.length, : self.length])


    def rotation(self, whole: Rotation | None) -> Rotation | None:
        """The angles of these rows."""
        if whole is None:
            return None
        angles = whole.key.rows(self.rows, self.length)
        return Rotation(angles, angles)


class Ragged:
    """(B, L) True at the places in use. `apart`: in groups of rows of like length; otherwise in one."""

    def __init__(self, real: Tensor, apart: bool):
        batch, self.length = real.shape
        self.count = real.numel()
        if not apart or batch < 2 * LEAST or self.count * self.length < SMALL:
            self.places = real.flatten().nonzero()[:, 0]
            self.groups = [Group(None, self.length, self.places, self.count)]
            return
        ends = (real * torch.arange(1, self.length + 1, device=real.device)).amax(1)  # where the last one in use ends
        self.groups, places = [], []
        for rows in ends.argsort(stable=True).tensor_split(min(GROUPS, batch // LEAST)):
            length = max(1, int(ends[rows].max()))
            row, place = real[rows, :length].nonzero().unbind(1)
            self.groups.append(Group(rows, length, row * length + place, len(rows) * length))
            places.append(rows[row] * self.length + place)
        self.places = torch.cat(places)

    def squeeze(self, x: Tensor) -> Tensor:
        """(B, L, width) -> (N, width), in the order of the groups."""
        return _Squeeze.apply(x.flatten(0, 1), self.places)

    def spread(self, x: Tensor) -> Tensor:
        """(N, width) -> (B, L, width), zero at filling."""
        return _Spread.apply(x, self.places, self.count).view(-1, self.length, x.shape[-1])

    def parts(self, x: Tensor) -> Iterator[tuple[Group, Tensor]]:
        """(group, (R, length, width)) of (N, width)."""
        for group, part in zip(self.groups, torch.split(x, [len(group.places) for group in self.groups]), strict=True):
            yield group, group.spread(part)


def worth_it(real: Tensor) -> bool:
    return int(real.sum()) < WORTH * real.numel()
