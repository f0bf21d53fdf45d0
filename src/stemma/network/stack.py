"""Depth: the stack owns the residuals, where the norm stands, and how often a block is applied.

Post-norm normalises the sum (arXiv:1706.03762); pre-norm normalises what enters the sublayer and once more at the very
end, which trains without a careful warm-up (arXiv:2002.04745).
"""

from __future__ import annotations

from torch import Tensor, nn

from stemma.network.block import Block
from stemma.network.dropout import Dropout
from stemma.network.norm import build_norm
from stemma.network.streams import Context
from stemma.schema.network import NetworkSettings


class Stack(nn.Module):
    def __init__(self, settings: NetworkSettings, layers: int):
        super().__init__()
        self.blocks = nn.ModuleList(Block(settings) for _ in range(layers))
        self.dropout = Dropout(settings.dropout)
        self.pre = settings.norm.place == "pre"
        self.final_norm = build_norm(settings.norm, settings.width) if self.pre else None

    def forward(self, x: Tensor, context: Context, layers: list[Tensor] | None = None) -> Tensor:
        """(B, L, width) -> (B, L, width); every layer's output is put in `layers` where a list is given."""
        for block in self.blocks:
            assert isinstance(block, Block)
            for sublayer, norm in block.sublayers():
                x = self.join(x, sublayer, norm, context)
            if layers is not None:
                layers.append(x)
        return self.final_norm(x) if self.final_norm is not None else x

    def join(self, x: Tensor, sublayer: nn.Module, norm: nn.Module, context: Context) -> Tensor:
        if self.pre:
            return x + self.dropout(sublayer(norm(x), context))
        return norm(x + self.dropout(sublayer(x, context)))
