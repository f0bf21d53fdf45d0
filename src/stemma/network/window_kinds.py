"""The body of a neural n-gram model: its settings, and how it is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from stemma.registry import register
from stemma.schema.base import Conflict, ConflictKey, constraint
from stemma.schema.parts import BodySettings, NetworkPart

if TYPE_CHECKING:  # recipes are checked without importing torch
    from stemma.network.body import Body
    from stemma.schema.network import NetworkSettings

MAX_ORDER = 64


class WindowBodySettings(BodySettings):
    """The embeddings of the last `order` - 1 tokens side by side, a linear layer and tanh."""

    kind: Literal["window"]
    order: Annotated[int, constraint(lambda order: 2 <= order <= MAX_ORDER,
                                     f"must lie between 2 and {MAX_ORDER}")] = 5  # tokens of an n-gram, with the next
    direct: bool = False  # the output layer also reads the embeddings; they are part of network.width

    required_keys: ClassVar[frozenset[str]] = frozenset()
    supports: ClassVar[frozenset[str]] = frozenset({"causal", "cache"})
    size_keys: ClassVar[tuple[str, ...]] = ("order", "direct")
    structural_keys: ClassVar[tuple[str, ...]] = ("kind", "order", "direct")
    unused_keys: ClassVar[tuple[str, ...]] = ("network.transition", "network.mix", "network.sharing",
                                              "network.inner_dropout", "network.norm.placement", "network.norm.first")
    causal_only: ClassVar[bool] = True
    carries_state: ClassVar[bool] = True
    reads_embedding: ClassVar[bool] = True

    def context_width(self, network: NetworkSettings) -> int:
        return (self.order - 1) * (network.embedding.width or network.width)

    def hidden_width(self, network: NetworkSettings) -> int:
        return network.width - (self.context_width(network) if self.direct else 0)

    def network_conflicts(self, network: NetworkSettings) -> Iterator[Conflict]:
        if self.hidden_width(network) < 1:
            context = self.context_width(network)
            what = f"with network.depth.direct the output layer reads {self.order - 1} embeddings, {context} numbers"
            yield (ConflictKey("width", f"{what}: it must be larger, such as {context + 64}"),
                   ConflictKey("depth.direct", f"{what}, and network.width is {network.width}: set more"),
                   ConflictKey("depth.order", f"{what}, and network.width is {network.width}: choose fewer"),
                   ConflictKey("embedding.width", f"{what}, and network.width is {network.width}: choose less"))

    def num_parameters(self, network: NetworkSettings, layers: int) -> int:
        return self.context_width(network) * self.hidden_width(network)


@register("body", "window", WindowBodySettings)
def window(network: NetworkSettings, part: NetworkPart) -> Body:
    """A neural probabilistic language model (Bengio et al. 2003)."""
    from stemma.network.window import WindowBody

    return WindowBody(network, part)
