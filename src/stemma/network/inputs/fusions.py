"""Fusions combine the embedded inputs of a position into one vector.

A fusion is built with the network's settings, the width and the names of [network.inputs]. It is called with the
embedded inputs of a stream by name, "tokens" among them, each (B, L, width).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stemma.registry import register
from stemma.schema.parts import FusionKind

if TYPE_CHECKING:  # recipes are checked without importing torch
    from collections.abc import Sequence

    from torch import nn

    from stemma.schema.network import NetworkSettings


@register("fusion", "sum", FusionKind)
def sum_inputs(network: NetworkSettings, width: int, names: Sequence[str]) -> nn.Module:
    """The sum of tokens and inputs."""
    from stemma.network.inputs.modules import Sum

    return Sum()


@register("fusion", "gate", FusionKind)
def gate_inputs(network: NetworkSettings, width: int, names: Sequence[str]) -> nn.Module:
    """Each input is added to the token through an element-wise gate of both (arXiv:1702.01992)."""
    from stemma.network.inputs.modules import Gate

    return Gate(network, width, names)
