"""Normalisation: which kind, and nothing else; where it stands is the stack's business."""

from __future__ import annotations

from torch import nn

from stemma.schema.network import NormSettings


def build_norm(settings: NormSettings, width: int) -> nn.Module:
    return nn.LayerNorm(width, eps=settings.epsilon)
