"""One layer: named sublayers, each with its norm. How they are joined to the residual is the stack's business."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from stemma.network.attention import build_attention
from stemma.network.convolution import ConvolutionTransition
from stemma.network.feedforward import FeedForward
from stemma.network.norm import build_norm
from stemma.schema.network import NetworkSettings


class Block(nn.Module):
    def __init__(self, settings: NetworkSettings):
        super().__init__()
        self.attention = build_attention(settings)
        self.attention_norm = build_norm(settings.norm, settings.width)
        transition = ConvolutionTransition if settings.transition == "convolution" else FeedForward
        self.feedforward = transition(settings.width, settings.feedforward, settings.activation)
        self.feedforward_norm = build_norm(settings.norm, settings.width)

    def sublayers(self) -> Iterator[tuple[nn.Module, nn.Module]]:
        yield self.attention, self.attention_norm
        yield self.feedforward, self.feedforward_norm
