"""The modules of the built-in inputs, and of the ways to combine them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from stemma.network.initialization import LookupEmbedding


class Segments(LookupEmbedding):
    def forward(self, given: Tensor | None) -> Tensor:
        """(B, L) -> (B, L, width); None: segment 0 throughout."""
        return self.weight[0] if given is None else super().forward(given)


class Tasks(LookupEmbedding):
    def forward(self, given: Tensor | None) -> Tensor:
        """(B,) -> (B, 1, width); None: task 0."""
        return self.weight[0] if given is None else super().forward(given)[:, None]


class Sum(nn.Module):
    def forward(self, read: Mapping[str, Tensor]) -> Tensor:
        """(B, L, width) each, by name -> (B, L, width)"""
        first, *others = read.values()
        for other in others:
            first = first + other
        return first
