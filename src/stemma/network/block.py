"""One layer: named sublayers, each with its norm. How they are joined to the residual is the stack's business."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from stemma.network.attention import build_attention, build_cross_attention
from stemma.network.convolution import ConvolutionTransition
from stemma.network.feedforward import FeedForward
from stemma.network.norm import build_norm
from stemma.schema.network import NetworkSettings


class Block(nn.Module):
    """`crossed`: between attention to its own text and the transition, a decoder's block looks at the encoder's."""

    def __init__(self, settings: NetworkSettings, crossed: bool = False):
        super().__init__()
        self.attention = build_attention(settings)
        self.attention_norm = build_norm(settings.norm, settings.width)
        self.cross = build_cross_attention(settings) if crossed else None
        self.cross_norm = build_norm(settings.norm, settings.width) if crossed else None
        self.feedforward = build_transition(settings)
        self.feedforward_norm = build_norm(settings.norm, settings.width)

    def sublayers(self) -> Iterator[tuple[nn.Module, nn.Module]]:
        yield self.attention, self.attention_norm
        if self.cross is not None and self.cross_norm is not None:
            yield self.cross, self.cross_norm
        yield self.feedforward, self.feedforward_norm


def build_transition(settings: NetworkSettings) -> nn.Module:
    if settings.transition == "convolution":
        return ConvolutionTransition(settings.width, settings.feedforward, settings.activation)
    return FeedForward(settings.width, settings.feedforward, settings.activation, settings.bias, settings.inner_dropout)
