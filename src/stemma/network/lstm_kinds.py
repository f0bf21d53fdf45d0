"""Recurrent bodies: their settings, and how each is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from stemma.registry import register
from stemma.schema.base import BelowOne, Conflict, ConflictKey, NonNegative, Positive, Width
from stemma.schema.parts import BodySettings, NetworkPart

if TYPE_CHECKING:  # recipes are checked without importing torch
    from collections.abc import Callable, Mapping

    from stemma.network.body import Body
    from stemma.schema.network import NetworkSettings


class LSTMSettings(BodySettings):
    """Keys of an LSTM (Hochreiter & Schmidhuber 1997) of `network.layers` layers.

    The last layer, and with `projection` every layer, has the output width `network.width` (both directions of a
    bidirectional one together). `network.dropout` is the dropout between layers, `network.output_dropout` that of the
    last layer's output."""

    hidden: Width | None = None  # cells of a layer, in each direction; None = as many as its output is wide
    projection: bool = False  # each layer's output is a projection of its cells (arXiv:1402.1128)
    residual: bool = False  # from the second layer on, the input is added to the output
    variational: bool = False  # one dropout mask for all positions of a row (arXiv:1512.05287)
    weight_dropout: BelowOne = 0.0  # of the hidden-to-hidden matrices (arXiv:1708.02182)
    cell_clip: Positive | None = None  # cells are clipped to this absolute value
    projection_clip: Positive | None = None  # so are projections
    forget_bias: float = 0.0  # initial bias of the forget gate
    activation_penalty: NonNegative = 0.0  # times the mean square of the last layer's output, after dropout
    temporal_penalty: NonNegative = 0.0  # times the mean square of its change from one position to the next

    required_keys: ClassVar[frozenset[str]] = frozenset({"layers"})
    size_keys: ClassVar[tuple[str, ...]] = ("hidden", "weight_dropout", "activation_penalty", "temporal_penalty")
    adjustable_keys: ClassVar[tuple[str, ...]] = ("weight_dropout", "activation_penalty", "temporal_penalty")
    structural_keys: ClassVar[tuple[str, ...]] = ("kind", "projection")
    unused_keys: ClassVar[tuple[str, ...]] = ("network.transition", "network.mix", "network.sharing",
                                              "network.inner_dropout", "network.norm.placement", "network.norm.first")
    reads_embedding: ClassVar[bool] = True
    directions: ClassVar[int] = 1

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.residual and self.hidden is not None and not self.projection:
            yield (ConflictKey("residual", "adds a layer's input to its output, so all layers need one width: leave "
                                           "network.depth.hidden out or set network.depth.projection=true"),
                   ConflictKey("hidden", "with network.depth.residual needs network.depth.projection=true: layers "
                                         "have one output width"))
        if self.projection and self.hidden is None:
            yield (ConflictKey("projection", "projects more cells than the network is wide: set network.depth.hidden"),
                   ConflictKey("hidden", "is the number of cells that network.depth.projection projects: set it"))
        if self.projection_clip is not None and not self.projection:
            yield (ConflictKey("projection_clip", "there is no projection to clip: set network.depth.projection=true"),
                   ConflictKey("projection", "network.depth.projection_clip needs it"))

    def network_conflicts(self, network: NetworkSettings) -> Iterator[Conflict]:
        if network.width % self.directions:
            yield (ConflictKey("width", f"is shared by two directions, and {network.width} is odd: try "
                                        f"{network.width + 1}"),
                   ConflictKey("depth.kind", f"has two directions, which need an even network.width (not "
                                             f"{network.width})"))

    def num_parameters(self, network: NetworkSettings, layers: int) -> int:
        hidden = self.hidden or network.width // self.directions
        recurrent = network.width // self.directions if self.projection else hidden
        return self.directions * (layers - 1) * 4 * hidden * recurrent

    def flop_counts(self) -> Mapping[object, Callable[..., int]]:
        from stemma.network.lstm import flop_counts

        counts: dict[Any, Callable[..., int]] = flop_counts()
        return counts


class ForwardLSTMSettings(LSTMSettings):
    """An LSTM that reads from left to right. Its state is carried to the next row of contiguous text."""

    kind: Literal["lstm"]

    supports: ClassVar[frozenset[str]] = frozenset({"causal", "cache"})
    causal_only: ClassVar[bool] = True
    carries_state: ClassVar[bool] = True


class BidirectionalLSTMSettings(LSTMSettings):
    """Each layer reads the layer below in both directions and returns both outputs side by side."""

    kind: Literal["bilstm"]

    directions: ClassVar[int] = 2


@register("body", "lstm", ForwardLSTMSettings)
@register("body", "bilstm", BidirectionalLSTMSettings)
def lstm(network: NetworkSettings, part: NetworkPart) -> Body:
    from stemma.network.lstm import LSTMBody

    return LSTMBody(network, part)
