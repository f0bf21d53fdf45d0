"""Rows with their tokens first and their padding last, for bodies that read them in order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokensFirst:
    """Moves the tokens of each row before its padding, and back."""

    lengths: Tensor  # (B,) tokens of each row
    order: Tensor | None  # (B, L) positions, tokens first; None: they are first already
    inverse: Tensor | None

    @classmethod
    def of(cls, token_mask: Tensor | None) -> TokensFirst | None:
        """None: there is no padding."""
        if token_mask is None or bool(token_mask.all()):
            return None
        lengths = token_mask.sum(1)
        positions = torch.arange(token_mask.shape[1], device=token_mask.device)
        if torch.equal(positions < lengths[:, None], token_mask):
            return cls(lengths, None, None)
        order = (~token_mask).to(torch.uint8).argsort(dim=1, stable=True)
        return cls(lengths, order, order.argsort(1))

    def gather(self, x: Tensor) -> Tensor:
        return x if self.order is None else x.gather(1, self.order[..., None].expand_as(x))

    def restore(self, x: Tensor) -> Tensor:
        return x if self.inverse is None else x.gather(1, self.inverse[..., None].expand_as(x))
