"""Rotary position embeddings: queries and keys are rotated by an angle proportional to their position.

Each pair of dimensions has its own frequency, from one radian per position down to 1 / base (arXiv:2104.09864). The
product of a rotated query and a rotated key depends on their distance only. There are no parameters. A pair is one
dimension of the first half of a head and one of the second half, as in transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stemma.network.module import TensorFunction
from stemma.network.position_kinds import RotaryPositionSettings


class _Rotate(TensorFunction):
    """Rotation whose backward pass rotates the gradient back; torch's would store every product."""

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
    """Cosines and sines of the angles of every position, (1 or B, L, 1, D / 2), broadcast over heads."""

    cos: Tensor
    sin: Tensor

    def rotate(self, x: Tensor) -> Tensor:
        """(B, L, heads, D) -> rotated, of the same shape."""
        return _Rotate.apply(x, self.cos.to(x.dtype), self.sin.to(x.dtype))

    def rows(self, rows: Tensor | None, length: int) -> RotaryAngles:
        """The angles of some rows of the batch, truncated to this length."""
        return RotaryAngles(*(values[:, :length] if rows is None or len(values) == 1 else values[rows, :length]
                              for values in (self.cos, self.sin)))

    def at_positions(self, positions: Tensor) -> RotaryAngles:
        """The angles at some positions of each row: (B, Q)."""
        if len(self.cos) == 1:
            return RotaryAngles(self.cos[0][positions], self.sin[0][positions])
        index = positions[:, :, None, None].expand(-1, -1, 1, self.cos.shape[-1])
        return RotaryAngles(self.cos.gather(1, index), self.sin.gather(1, index))

    def from_position(self, first: int) -> RotaryAngles:
        return RotaryAngles(self.cos[:, first:], self.sin[:, first:])


@dataclass(frozen=True)
class RotaryRotation:
    """The rotation of a layer's queries and keys. A cache stores rotated keys."""

    query: RotaryAngles
    key: RotaryAngles

    def rows(self, rows: Tensor) -> RotaryRotation:
        """The rotation of some rows of the batch."""
        return RotaryRotation(*(angles.rows(rows, angles.cos.shape[1]) for angles in (self.query, self.key)))


def build_rotation(settings: RotaryPositionSettings, local: bool, head_width: int, position_ids: Tensor,
                   query_positions: Tensor | None = None) -> RotaryRotation:
    """The rotation of layers with a sliding window (`local`) or without, for position ids (L) or (B, L), followed by
    the positions of a query stream (B, P)."""
    base = settings.local_base if local and settings.local_base is not None else settings.base
    pairs = torch.arange(0, head_width, 2, device=position_ids.device, dtype=torch.float32)
    inv_freq = 1.0 / base ** (pairs / head_width)  # bit for bit as in transformers: large positions amplify errors

    sign = -1.0 if settings.clockwise else 1.0

    def angles(positions: Tensor) -> RotaryAngles:
        angle = (positions if positions.dim() == 2 else positions[None])[:, :, None, None].float() * inv_freq * sign
        return RotaryAngles(angle.cos(), angle.sin())

    text = angles(position_ids)
    if query_positions is None:
        return RotaryRotation(text, text)
    rows = position_ids.expand(len(query_positions), -1)
    return RotaryRotation(angles(torch.cat([rows, rows.gather(1, query_positions)], 1)), text)
