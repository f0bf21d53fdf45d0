"""Unpadded computation: position-wise layers run on tokens only, attention on groups of rows of similar length.

Padding costs as much as text. Sorting batches by length would avoid it, but in many data sets the label correlates
with length, and sorted batches would give biased gradients.
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

MAX_FILL_RATIO = 0.9  # fraction of positions that are tokens; above it, unpadding costs more than it saves
MIN_SAVING = 1 << 16  # hidden-state elements of the padding; below it, unpadding costs more than it saves
MAX_GROUPS, MIN_GROUP_ROWS = 4, 4  # groups of rows of similar length, and rows per group
MIN_SCORES_TO_GROUP = 1 << 17  # attention scores (rows x length x length); below it, one group is faster


class _Unpad(TensorFunction):
    """Selects rows of a matrix. Its backward pass copies, where torch's would add: no row is selected twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.rows, ctx.count = rows, len(x)
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _scatter_rows(grads[0], ctx.rows, ctx.count), None


class _Pad(TensorFunction):
    """The inverse: rows go back to their positions, with zeros elsewhere."""

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
    """Rows of the batch of similar length, truncated to the longest of them."""

    rows: Tensor | None  # (R,) row indices; None: all rows, in order
    length: int
    token_indices: Tensor  # (n,) indices of the tokens in R x length
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
        """The attention mask of these rows, from that of the batch."""
        dense = batch_mask.dense
        if self.rows is not None and batch_mask.token_mask is not None:
            return replace(batch_mask, token_mask=batch_mask.token_mask[self.rows, : self.length])
        if self.rows is None or dense is None:
            return batch_mask
        if dense.shape[2] == 1 and len(self.token_indices) == self.num_positions:
            return CompiledMask()  # a padding mask over rows without padding
        dense = dense if dense.shape[0] == 1 else dense[self.rows]
        return CompiledMask(dense=dense[:, :, : self.length, : self.length])

    def rotation(self, batch_rotation: RotaryRotation | None) -> RotaryRotation | None:
        """The rotation of these rows, from that of the batch."""
        if batch_rotation is None:
            return None
        angles = batch_rotation.key.rows(self.rows, self.length)
        return RotaryRotation(angles, angles)


class UnpaddedBatch:
    """A batch without padding. `token_mask`: (B, L) True at tokens. `group_by_length`: split the rows into groups of
    similar length; otherwise all rows are one group."""

    def __init__(self, token_mask: Tensor, group_by_length: bool):
        batch, self.length = token_mask.shape
        self.num_positions = token_mask.numel()
        if not group_by_length or batch < 2 * MIN_GROUP_ROWS or self.num_positions * self.length < MIN_SCORES_TO_GROUP:
            self.token_indices = token_mask.flatten().nonzero()[:, 0]
            self.groups = [LengthGroup(None, self.length, self.token_indices, self.num_positions)]
            return
        # number of columns up to the last token of each row
        ends = (token_mask * torch.arange(1, self.length + 1, device=token_mask.device)).amax(1)
        self.groups, indices = [], []
        for rows in ends.argsort(stable=True).tensor_split(min(MAX_GROUPS, batch // MIN_GROUP_ROWS)):
            length = max(1, int(ends[rows].max()))
            row, position = token_mask[rows, :length].nonzero().unbind(1)
            self.groups.append(LengthGroup(rows, length, row * length + position, len(rows) * length))
            indices.append(rows[row] * self.length + position)
        self.token_indices = torch.cat(indices)

    def unpad(self, x: Tensor) -> Tensor:
        """(B, L, width) -> (N, width), in the order of the groups."""
        return _Unpad.apply(x.flatten(0, 1), self.token_indices)

    def pad(self, x: Tensor) -> Tensor:
        """(N, width) -> (B, L, width), zero at padding."""
        return _Pad.apply(x, self.token_indices, self.num_positions).view(-1, self.length, x.shape[-1])

    def padded_groups(self, x: Tensor) -> Iterator[tuple[LengthGroup, Tensor]]:
        """(N, width) -> (group, (R, length, width)) of each group."""
        parts = torch.split(x, [len(group.token_indices) for group in self.groups])
        for group, part in zip(self.groups, parts, strict=True):
            yield group, group.pad(part)


def should_unpad(token_mask: Tensor, width: int) -> bool:
    """Whether more than 10% of the batch is padding, and enough to be worth it."""
    num_tokens, num_positions = int(token_mask.sum()), token_mask.numel()
    return num_tokens < MAX_FILL_RATIO * num_positions and (num_positions - num_tokens) * width >= MIN_SAVING
