"""Attention, one kind a file; a recipe names the kind."""

from __future__ import annotations

from torch import nn

from stemma.network.attention.cross import CrossAttention
from stemma.network.attention.full import FullAttention
from stemma.schema.network import NetworkSettings


def build_attention(settings: NetworkSettings) -> nn.Module:
    return FullAttention(settings)


def build_cross_attention(settings: NetworkSettings) -> nn.Module:
    return CrossAttention(settings)
