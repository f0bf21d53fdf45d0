"""Rotary positions: queries and keys are turned by an angle that grows with their position (arXiv:2104.09864).

Each pair of numbers of a head turns at its own rate, from one radian a position down to 1 / base of it. A product of a
turned query with a turned key then depends on how far apart they stand and on nothing else; no weights, no table.
Pairs are the first and the second half of a head, as in transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stemma.network.module import TensorFunction
from stemma.network.position_kinds import RotaryPositionSettings


class _Rotate(TensorFunction):
    """By its own backward pass, which turns the gradient back: torch's would keep every product on the way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(grads[0], cos, -sin), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    half = x.shape[-1] // 2
    out[..., :half] = torch.addcmul(first * cos, second, sin, value=-1)
    out[..., half:] = torch.addcmul(second * cos, first, sin)
    return out


@dataclass(frozen=True)
class RotaryAngles:
    """(1 or B, L, 1, D / 2): the cosines and sines of every position's angles, broadcast over heads."""

    cos: Tensor
    sin: Tensor

    def rotate(self, x: Tensor) -> Tensor:
        """(B, L, heads, D) -> the same, turned."""
        return _Rotate.apply(x, self.cos.to(x.dtype), self.sin.to(x.dtype))

    def rows(self, rows: Tensor | None, length: int) -> RotaryAngles:
        """Those of some rows of the batch, cut to this length."""
        return RotaryAngles(*(table[:, :length] if rows is None or len(table) == 1 else table[rows, :length]
                        for table in (self.cos, self.sin)))

    def at_positions(self, positions: Tensor) -> RotaryAngles:
        """Those of some positions of each row: (B, Q)."""
        if len(self.cos) == 1:
            return RotaryAngles(self.cos[0][positions], self.sin[0][positions])
        index = positions[:, :, None, None].expand(-1, -1, 1, self.cos.shape[-1])
        return RotaryAngles(self.cos.gather(1, index), self.sin.gather(1, index))

    def from_position(self, first: int) -> RotaryAngles:
        return RotaryAngles(self.cos[:, first:], self.sin[:, first:])


@dataclass(frozen=True)
class RotaryRotation:
    """What turns a layer's queries and keys. Keys that a cache has kept were turned when they were read."""

    query: RotaryAngles
    key: RotaryAngles

    def rows(self, rows: Tensor) -> RotaryRotation:
        """Those of some rows of the batch."""
        return RotaryRotation(*(angles.rows(rows, angles.cos.shape[1]) for angles in (self.query, self.key)))


def build_rotation(settings: RotaryPositionSettings, local: bool, head_width: int, position_ids: Tensor,
             query_positions: Tensor | None = None) -> RotaryRotation:
    """Of a layer that sees its neighbourhood only (`local`) or everything, for text at `positions` (L) or (B, L), and
    at the positions of a second stream (B, P) behind it."""
    base = settings.local_base if local and settings.local_base is not None else settings.base
    pairs = torch.arange(0, head_width, 2, device=position_ids.device, dtype=torch.float32)
    inv_freq = 1.0 / base ** (pairs / head_width)  # to the last bit as in transformers: far positions multiply it

    def angles(at: Tensor) -> RotaryAngles:
        angle = (at if at.dim() == 2 else at[None])[:, :, None, None].float() * inv_freq
        return RotaryAngles(angle.cos(), angle.sin())

    text = angles(position_ids)
    if query_positions is None:
        return RotaryRotation(text, text)
    rows = position_ids.expand(len(query_positions), -1)
    return RotaryRotation(angles(torch.cat([rows, rows.gather(1, query_positions)], 1)), text)
