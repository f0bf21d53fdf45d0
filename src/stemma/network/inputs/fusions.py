"""How what is read of a position becomes one vector.

A fusion is built with the network's settings, the width and the names of [network.inputs]: a module that is called with
what a stream has, by name, "tokens" among them, each (B, L, width).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stemma.registry import register
from stemma.schema.parts import FusionKind

if TYPE_CHECKING:  # settings are read before torch is imported
    from collections.abc import Sequence

    from torch import nn

    from stemma.schema.network import NetworkSettings


@register("fusion", "sum", FusionKind)
def added_up(network: NetworkSettings, width: int, names: Sequence[str]) -> nn.Module:
    """Token and inputs count alike."""
    from stemma.network.inputs.modules import Sum

    return Sum()


@register("fusion", "gate", FusionKind)
def gated(network: NetworkSettings, width: int, names: Sequence[str]) -> nn.Module:
    """Of each input as much is added to the token as both of them say, number by number (arXiv:1702.01992)."""
    from stemma.network.inputs.modules import Gate

    return Gate(network, width, names)
