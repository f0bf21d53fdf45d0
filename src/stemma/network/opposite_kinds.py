"""The body of two language models that read in opposite directions: its settings, and how it is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from stemma.network.lstm_kinds import LSTMSettings
from stemma.registry import register
from stemma.schema.base import Conflict, ConflictKey
from stemma.schema.parts import NetworkPart

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
