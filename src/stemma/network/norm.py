"""Normalisation: which kind, and nothing else; where it stands is the stack's business."""

from __future__ import annotations

from torch import nn

from stemma.schema.network import NormSettings


def build_norm(settings: NormSettings, width: int) -> nn.Module:
    """By mean and size (arXiv:1607.06450), or by size alone (arXiv:1910.07467)."""
    if settings.kind == "scale":
        return nn.RMSNorm(width, eps=settings.epsilon, elementwise_affine=settings.weight)
    return nn.LayerNorm(width, eps=settings.epsilon, elementwise_affine=settings.weight, bias=settings.bias)
