"""The kinds of feed-forward layers, norms and bodies: what is known of each beforehand, and how it is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from stemma import registry
from stemma.registry import register
from stemma.schema.base import NonNegative, OpenFraction, Settings
from stemma.schema.parts import BodySettings, FeedForwardKind, NetworkPart, NormKind

if TYPE_CHECKING:  # settings are read before torch is imported
    from torch import nn

    from stemma.network.module import TensorModule
    from stemma.network.stack import Stack
    from stemma.schema.network import NetworkSettings
    from stemma.schema.network_tables import NormSettings


# --- feed-forward layers ----------------------------------------------------------------------------------------------


@register("feedforward", "feedforward", FeedForwardKind)
def feedforward(network: NetworkSettings) -> nn.Module:
    """Two linear maps with an activation between them (arXiv:1706.03762, section 3.3)."""
    from stemma.network.feedforward import FeedForward

    return FeedForward(network)


class GatedKind(FeedForwardKind):
    matrices: ClassVar[int] = 3


@register("feedforward", "gated", GatedKind)
def gated(network: NetworkSettings) -> nn.Module:
    """GeGLU or SwiGLU, by the activation (arXiv:2002.05202)."""
    from stemma.network.feedforward import GatedFeedForward

    return GatedFeedForward(network)


class ConvolutionKind(FeedForwardKind):
    position_wise: ClassVar[bool] = False
    matrices: ClassVar[int] = 0


@register("feedforward", "convolution", ConvolutionKind)
def convolution(network: NetworkSettings) -> nn.Module:
    """Two separable convolutions (Universal Transformer, arXiv:1807.03819, section 2.1)."""
    from stemma.network.convolution import ConvolutionFeedForward

    return ConvolutionFeedForward(network)


def build_feedforward(network: NetworkSettings) -> TensorModule:
    made: TensorModule = registry.get("feedforward", network.transition).build(network)
    return made


# --- norms ------------------------------------------------------------------------------------------------------------


@register("norm", "layer", NormKind)
def layer_norm(settings: NormSettings, width: int) -> nn.Module:
    """By mean and size (arXiv:1607.06450)."""
    from torch import nn

    return nn.LayerNorm(width, eps=settings.epsilon, elementwise_affine=settings.weight, bias=settings.bias)


class ScaleNormKind(NormKind):
    has_bias: ClassVar[bool] = False


@register("norm", "scale", ScaleNormKind)
def scale_norm(settings: NormSettings, width: int) -> nn.Module:
    """By size alone (arXiv:1910.07467; T5)."""
    from torch import nn

    return nn.RMSNorm(width, eps=settings.epsilon, elementwise_affine=settings.weight)


def build_norm(settings: NormSettings, width: int) -> TensorModule:
    """Which kind, and nothing else; where it stands is the block's business."""
    made: TensorModule = registry.get("norm", settings.kind).build(settings, width)
    return made


# --- bodies -----------------------------------------------------------------------------------------------------------


class StackedBodySettings(BodySettings):
    """Layers of their own, one upon the other."""

    kind: Literal["stacked"]

    cross_attends: ClassVar[bool] = True
    has_blocks: ClassVar[bool] = True


@register("body", "stacked", StackedBodySettings)
def stacked(network: NetworkSettings, part: NetworkPart) -> Stack:
    from stemma.network.stack import Stack

    return Stack(network, part)


class HaltingSettings(Settings):
    """Each position decides how many steps it takes (arXiv:1603.08983)."""

    threshold: OpenFraction = 0.99  # a position stops once its halting probabilities add up to this
    cost: NonNegative = 0.01  # of one step at one position, beside the loss
    bias: float = 1.0  # where the halting unit starts: at 1 (the authors') a position takes about two steps at first
    limit: Literal["open", "full"] = "open"  # after the last step possible, the weight that is left is dropped, as in
    #                                          the paper's listing, or goes to the last state: then weights add up to 1


class RecurrentBodySettings(BodySettings):
    """One block, applied `layers` times (Universal Transformer)."""

    kind: Literal["recurrent"]
    halting: HaltingSettings | None = None  # None = every position takes every step

    cross_attends: ClassVar[bool] = True
    shares_one_block: ClassVar[bool] = True
    adds_positions: ClassVar[bool] = True


@register("body", "recurrent", RecurrentBodySettings)
def recurrent(network: NetworkSettings, part: NetworkPart) -> Stack:
    from stemma.network.recurrent import RecurrentStack

    return RecurrentStack(network, part)
