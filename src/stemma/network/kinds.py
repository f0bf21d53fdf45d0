"""The registered kinds of feed-forward layers, norms and bodies: their settings, and how each is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from stemma import registry
from stemma.registry import register
from stemma.schema.base import NonNegative, OpenFraction, Settings, constraint
from stemma.schema.parts import BodySettings, FeedForwardKind, NetworkPart, NormKind

if TYPE_CHECKING:  # recipes are checked without importing torch
    from torch import nn

    from stemma.network.body import Body
    from stemma.network.module import TensorModule
    from stemma.network.ngram_tables import CountingTable
    from stemma.network.stack import Stack
    from stemma.schema.network import NetworkSettings
    from stemma.schema.network_tables import NormSettings


# --- feed-forward layers ----------------------------------------------------------------------------------------------


@register("feedforward", "feedforward", FeedForwardKind)
def feedforward(network: NetworkSettings) -> nn.Module:
    """Linear, activation, linear (arXiv:1706.03762, section 3.3)."""
    from stemma.network.feedforward import FeedForward

    return FeedForward(network)


class GatedKind(FeedForwardKind):
    matrices: ClassVar[int] = 3


@register("feedforward", "gated", GatedKind)
def gated(network: NetworkSettings) -> nn.Module:
    """GeGLU or SwiGLU, by the activation (arXiv:2002.05202)."""
    from stemma.network.feedforward import GatedFeedForward

    return GatedFeedForward(network)


@register("feedforward", "gated_norm", GatedKind)
def gated_norm(network: NetworkSettings) -> nn.Module:
    """GeGLU or SwiGLU with LayerNorm before the second matrix (LTG-BERT, arXiv:2303.09859)."""
    from stemma.network.feedforward import NormedGatedFeedForward

    return NormedGatedFeedForward(network)


class ConvolutionKind(FeedForwardKind):
    position_wise: ClassVar[bool] = False
    matrices: ClassVar[int] = 0


@register("feedforward", "convolution", ConvolutionKind)
def convolution(network: NetworkSettings) -> nn.Module:
    """Two separable convolutions (Universal Transformer, arXiv:1807.03819, section 2.1)."""
    from stemma.network.convolution import ConvolutionFeedForward

    return ConvolutionFeedForward(network)


def build_feedforward(network: NetworkSettings) -> TensorModule:
    module: TensorModule = registry.get("feedforward", network.transition).build(network)
    return module


# --- norms ------------------------------------------------------------------------------------------------------------


@register("norm", "layer", NormKind)
def layer_norm(settings: NormSettings, width: int) -> nn.Module:
    """LayerNorm (arXiv:1607.06450)."""
    from torch import nn

    return nn.LayerNorm(width, eps=settings.epsilon, elementwise_affine=settings.weight, bias=settings.bias)


class RMSNormKind(NormKind):
    has_bias: ClassVar[bool] = False


@register("norm", "rms", RMSNormKind)
@register("norm", "scale", RMSNormKind)  # T5's name of it, and that of earlier versions
def rms_norm(settings: NormSettings, width: int) -> nn.Module:
    """RMSNorm (arXiv:1910.07467; T5)."""
    from stemma.network.rms_norm import RMSNorm

    return RMSNorm(width, eps=settings.epsilon, elementwise_affine=settings.weight)


def build_norm(settings: NormSettings, width: int) -> TensorModule:
    """The norm of the recipe's kind."""
    module: TensorModule = registry.get("norm", settings.kind).build(settings, width)
    return module


# --- bodies -----------------------------------------------------------------------------------------------------------


class StackedBodySettings(BodySettings):
    """A stack of blocks."""

    kind: Literal["stacked"]

    cross_attends: ClassVar[bool] = True
    has_blocks: ClassVar[bool] = True


@register("body", "stacked", StackedBodySettings)
def stacked(network: NetworkSettings, part: NetworkPart) -> Stack:
    from stemma.network.stack import Stack

    return Stack(network, part)


class HaltingSettings(Settings):
    """Adaptive computation time: each position has its own number of steps (arXiv:1603.08983)."""

    threshold: OpenFraction = 0.99  # a position halts once its halting probabilities add up to this
    cost: NonNegative = 0.01  # weight of the ponder cost: per step and position, added to the loss
    bias: float = 1.0  # initial bias of the halting unit; at 1 (the authors') a position takes about two steps at first
    limit: Literal["open", "full"] = "open"  # halting weight left after the last step: open = dropped, as in the
    #                                          paper's listing; full = given to the last state (weights sum to 1)


class RecurrentBodySettings(BodySettings):
    """One block, applied `layers` times (Universal Transformer)."""

    kind: Literal["recurrent"]
    halting: HaltingSettings | None = None  # None = every position takes all steps

    cross_attends: ClassVar[bool] = True
    shares_one_block: ClassVar[bool] = True
    adds_positions: ClassVar[bool] = True


@register("body", "recurrent", RecurrentBodySettings)
def recurrent(network: NetworkSettings, part: NetworkPart) -> Stack:
    from stemma.network.recurrent import RecurrentStack

    return RecurrentStack(network, part)


MAX_NGRAM_ORDER = 6
# Keys that describe vectors: a body of counts has none.
COUNTING_UNUSED = ("network.width", "network.*dropout", "network.activation", "network.bias", "network.norm.*",
                   "network.initialization.*", "network.embedding.*", "network.head.*", "network.transition",
                   "network.mix", "network.sharing")


class CountingBodySettings(BodySettings):
    """A body without vectors. Its hidden states are token ids, which the head looks up in tables of counts."""

    required_keys: ClassVar[frozenset[str]] = frozenset()
    unused_keys: ClassVar[tuple[str, ...]] = COUNTING_UNUSED
    counts: ClassVar[bool] = True

    def build_table(self, vocab_size: int) -> CountingTable:
        """The tables, empty."""
        raise NotImplementedError


class NgramBodySettings(CountingBodySettings):
    """The context itself: the last `order` - 1 tokens."""

    kind: Literal["ngram"]
    order: Annotated[int, constraint(lambda order: 1 <= order <= MAX_NGRAM_ORDER,
                                     f"must lie between 1 and {MAX_NGRAM_ORDER}")] = 5  # tokens of the longest n-gram

    supports: ClassVar[frozenset[str]] = frozenset({"causal", "cache"})
    size_keys: ClassVar[tuple[str, ...]] = ("order",)
    causal_only: ClassVar[bool] = True

    def build_table(self, vocab_size: int) -> CountingTable:
        from stemma.network.ngram_tables import NgramTable

        return NgramTable(vocab_size, self.order)


@register("body", "ngram", NgramBodySettings)
def ngram(network: NetworkSettings, part: NetworkPart) -> Body:
    """An n-gram model (Chen & Goodman 1998)."""
    from stemma.network.ngram_tables import NgramBody

    return NgramBody(network, part)


class NeighborBodySettings(CountingBodySettings):
    """The neighbours of each token."""

    kind: Literal["neighbors"]
    neighbors: Literal["both", "left", "none"] = "both"  # the context of a token

    size_keys: ClassVar[tuple[str, ...]] = ("neighbors",)

    def build_table(self, vocab_size: int) -> CountingTable:
        from stemma.network.neighbor_tables import NeighborTable

        return NeighborTable(vocab_size, self.neighbors)


@register("body", "neighbors", NeighborBodySettings)
def neighbors(network: NetworkSettings, part: NetworkPart) -> Body:
    """Two-sided counts."""
    from stemma.network.neighbor_tables import NeighborBody

    return NeighborBody()


class StaticBodySettings(BodySettings):
    """No layers: a hidden state is the vector of the token itself (static word vectors)."""

    kind: Literal["static"]

    required_keys: ClassVar[frozenset[str]] = frozenset()
    unused_keys: ClassVar[tuple[str, ...]] = ("network.activation", "network.bias", "network.norm.*", "network.head.*",
                                              "network.transition", "network.mix", "network.sharing",
                                              "network.inner_dropout", "network.output_dropout")
    supports: ClassVar[frozenset[str]] = frozenset({"causal", "masks"})
    static: ClassVar[bool] = True


@register("body", "static", StaticBodySettings)
def static(network: NetworkSettings, part: NetworkPart) -> Body:
    """Word vectors (word2vec, fastText, GloVe)."""
    from stemma.network.static import StaticBody

    return StaticBody()
