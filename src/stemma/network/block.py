"""One layer: named sublayers, each with its norm. How they are joined to the residual is the stack's business."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from stemma.network.attention import build_attention, build_cross_attention
from stemma.network.convolution import ConvolutionTransition
from stemma.network.feedforward import FeedForward, GatedFeedForward
from stemma.network.norm import build_norm
from stemma.schema.network import NetworkSettings

SHARED: dict[str, tuple[str, ...]] = {"none": (), "attention": ("attention", "cross"), "feedforward": ("feedforward",),
                                      "all": ("attention", "cross", "feedforward")}


class Block(nn.Module):
    """`crossed`: between attention to its own text and the transition, a decoder's block looks at the encoder's.

    A sublayer that all layers have in common (ALBERT, arXiv:1909.11942) is the one of the `first` layer, norm included.
    """

    attention: nn.Module
    attention_norm: nn.Module

    def __init__(self, settings: NetworkSettings, crossed: bool = False, first: Block | None = None):
        super().__init__()
        builders = {"attention": build_attention, "cross": build_cross_attention, "feedforward": build_transition}
        self.names = tuple(name for name in builders if crossed or name != "cross")
        for name in self.names:
            if first is not None and name in SHARED[settings.sharing]:
                # past nn.Module's bookkeeping: it is stored, counted, initialised and trained once
                object.__setattr__(self, name, getattr(first, name))
                object.__setattr__(self, f"{name}_norm", getattr(first, f"{name}_norm"))
            else:
                setattr(self, name, builders[name](settings))
                setattr(self, f"{name}_norm", build_norm(settings.norm, settings.width))
        if first is None and not settings.norm.first:
            self.attention_norm = nn.Identity()

    def sublayers(self) -> Iterator[tuple[nn.Module, nn.Module]]:
        for name in self.names:
            yield getattr(self, name), getattr(self, f"{name}_norm")


def build_transition(settings: NetworkSettings) -> nn.Module:
    if settings.transition == "convolution":
        return ConvolutionTransition(settings.width, settings.feedforward, settings.activation)
    kind = GatedFeedForward if settings.transition == "gated" else FeedForward
    return kind(settings.width, settings.feedforward, settings.activation, settings.bias, settings.inner_dropout)
