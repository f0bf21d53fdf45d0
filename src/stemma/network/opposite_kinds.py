"""Bodies of two LSTMs that read in opposite directions: their settings, and how each is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from stemma.network.lstm_kinds import LSTMSettings
from stemma.registry import register
from stemma.schema.base import Conflict, ConflictKey, Width
from stemma.schema.parts import BodySettings, NetworkPart

if TYPE_CHECKING:  # recipes are checked without importing torch
    from stemma.network.body import Body
    from stemma.schema.network import NetworkSettings


class OppositeLSTMSettings(LSTMSettings):
    """Two LSTMs that read in opposite directions, each half as wide as the network."""

    kind: Literal["opposite_lstms"]

    size_keys: ClassVar[tuple[str, ...]] = (*LSTMSettings.size_keys, "projection", "cell_clip", "projection_clip")
    supports: ClassVar[frozenset[str]] = frozenset({"causal", "cache"})
    carries_state: ClassVar[bool] = True
    opposite_directions: ClassVar[bool] = True
    directions: ClassVar[int] = 2

    def network_conflicts(self, network: NetworkSettings) -> Iterator[Conflict]:
        yield from super().network_conflicts(network)
        width = network.embedding.width or network.width
        if width not in (network.width, network.width // 2):
            yield (ConflictKey("embedding.width", f"stands once or twice in the lowest hidden state, so it must be "
                                                  f"{network.width // 2} or {network.width}"),
                   ConflictKey("width", f"must be once or twice network.embedding.width = {width}"))
        if self.residual and self.hidden not in (None, network.width // 2) and not self.projection:
            yield (ConflictKey("depth.projection", "must be true: layers that are added have one width"),)


@register("body", "opposite_lstms", OppositeLSTMSettings)
def opposite_lstms(network: NetworkSettings, part: NetworkPart) -> Body:
    from stemma.network.opposite_lstms import OppositeLSTMs

    return OppositeLSTMs(network, part)


class Context2vecSettings(BodySettings):
    """An LSTM over the words before a position and another over those after it; each has half of the embedding."""

    kind: Literal["context2vec"]
    hidden: Width | None = None  # cells of each LSTM; the joining layer has twice as many units; None = network.width

    required_keys: ClassVar[frozenset[str]] = frozenset()
    size_keys: ClassVar[tuple[str, ...]] = ("hidden",)
    unused_keys: ClassVar[tuple[str, ...]] = LSTMSettings.unused_keys
    reads_embedding: ClassVar[bool] = True
    excludes_token: ClassVar[bool] = True

    def network_conflicts(self, network: NetworkSettings) -> Iterator[Conflict]:
        width = network.embedding.width or network.width
        if width % 2:
            yield (ConflictKey("embedding.width", f"is shared by two directions, and {width} is odd: try {width + 1}"),
                   ConflictKey("width", f"is that of the embedding, which two directions share, and {width} is odd: "
                                        f"try {width + 1}"))

    def num_parameters(self, network: NetworkSettings, layers: int) -> int:
        hidden = self.hidden or network.width
        return 8 * hidden * hidden + 4 * hidden * hidden


@register("body", "context2vec", Context2vecSettings)
def context2vec(network: NetworkSettings, part: NetworkPart) -> Body:
    from stemma.network.context2vec import ContextBody

    return ContextBody(network, part)
