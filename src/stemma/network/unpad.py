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
from stemma.network.rotary import RotaryRotation
from stemma.visibility import CompiledMask

MAX_FILL_RATIO = 0.9  # of all places: with more of them in use, laying them out costs more than it saves
MAX_GROUPS, MIN_GROUP_ROWS = 4, 4  # groups of rows of like length, and the rows that one has at least
MIN_SCORES_TO_GROUP = 1 << 17  # scores (rows x length x length) so few that one group is quicker than several


class _Unpad(TensorFunction):
    """Some rows of a matrix, each once. Its own backward pass: torch's would add where there is nothing to add to."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.rows, ctx.count = rows, len(x)
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _scatter_rows(grads[0], ctx.rows, ctx.count), None


class _Pad(TensorFunction):
    """The way back: zeros everywhere else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, count: int) -> Tensor:
        ctx.rows = rows
        return _scatter_rows(x, rows, count)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0].index_select(0, ctx.rows), None, None


def _scatter_rows(x: Tensor, rows: Tensor, count: int) -> Tensor:
    return x.new_zeros(count, *x.shape[1:]).index_copy_(0, rows, x)


@dataclass(frozen=True)
class LengthGroup:
    """Rows of the batch, cut to the longest of them."""

    rows: Tensor | None  # (R,) their numbers; None: all of them, in order
    length: int
    token_indices: Tensor  # (n,) those in use, of R x length
    num_positions: int  # R x length

    def pad(self, x: Tensor) -> Tensor:
        """(n, width) -> (R, length, width)"""
        if len(self.token_indices) < self.num_positions:
            x = _Pad.apply(x, self.token_indices, self.num_positions)
        return x.view(-1, self.length, x.shape[-1])

    def unpad(self, x: Tensor) -> Tensor:
        """(R, length, width) -> (n, width)"""
        x = x.flatten(0, 1)
        return x if len(self.token_indices) == self.num_positions else _Unpad.apply(x, self.token_indices)

    def mask(self, batch_mask: CompiledMask) -> CompiledMask:
        """What these rows see of what all rows see."""
        dense = batch_mask.dense
        if self.rows is not None and batch_mask.token_mask is not None:
            return replace(batch_mask, token_mask=batch_mask.token_mask[self.rows, : self.length])
        if self.rows is None or dense is None:
            return batch_mask
        if dense.shape[2] == 1 and len(self.token_indices) == self.num_positions:  # it hides filling, and there is none
            return CompiledMask()
        dense = dense if dense.shape[0] == 1 else dense[self.rows]
        return CompiledMask(dense=dense[:, :, : self.length, : self.length])


    def rotation(self, batch_rotation: RotaryRotation | None) -> RotaryRotation | None:
        """The angles of these rows."""
        if batch_rotation is None:
            return None
        angles = batch_rotation.key.rows(self.rows, self.length)
        return RotaryRotation(angles, angles)


class UnpaddedBatch:
    """(B, L) True at the places in use. `apart`: in groups of rows of like length; otherwise in one."""

    def __init__(self, token_mask: Tensor, group_by_length: bool):
        batch, self.length = token_mask.shape
        self.num_positions = token_mask.numel()
        if not group_by_length or batch < 2 * MIN_GROUP_ROWS or self.num_positions * self.length < MIN_SCORES_TO_GROUP:
            self.token_indices = token_mask.flatten().nonzero()[:, 0]
            self.groups = [LengthGroup(None, self.length, self.token_indices, self.num_positions)]
            return
        # where the last one in use ends
        ends = (token_mask * torch.arange(1, self.length + 1, device=token_mask.device)).amax(1)
        self.groups, places = [], []
        for rows in ends.argsort(stable=True).tensor_split(min(MAX_GROUPS, batch // MIN_GROUP_ROWS)):
            length = max(1, int(ends[rows].max()))
            row, place = token_mask[rows, :length].nonzero().unbind(1)
            self.groups.append(LengthGroup(rows, length, row * length + place, len(rows) * length))
            places.append(rows[row] * self.length + place)
        self.token_indices = torch.cat(places)

    def unpad(self, x: Tensor) -> Tensor:
        """(B, L, width) -> (N, width), in the order of the groups."""
        return _Unpad.apply(x.flatten(0, 1), self.token_indices)

    def pad(self, x: Tensor) -> Tensor:
        """(N, width) -> (B, L, width), zero at filling."""
        return _Pad.apply(x, self.token_indices, self.num_positions).view(-1, self.length, x.shape[-1])

    def padded_groups(self, x: Tensor) -> Iterator[tuple[LengthGroup, Tensor]]:
        """(group, (R, length, width)) of (N, width)."""
        for group, part in zip(self.groups, torch.split(x, [len(group.token_indices) for group in self.groups]),
                               strict=True):
            yield group, group.pad(part)


def should_unpad(token_mask: Tensor) -> bool:
    return int(token_mask.sum()) < MAX_FILL_RATIO * token_mask.numel()
