"""The kinds of positions: settings, and what each brings to a network. A kind may add to the embedding, add to the
scores of attention, or rotate queries and keys; modules are imported when they are built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from stemma import registry
from stemma.registry import register
from stemma.schema.base import Blame, Conflict, Count, Natural, limit
from stemma.schema.network import NetworkSettings
from stemma.schema.parts import PositionSettings

if TYPE_CHECKING:  # settings are read before torch is imported
    from torch import Tensor, nn

    from stemma.network.module import TensorModule
    from stemma.network.rotary import Rotation


class Position:
    """What positions of a kind bring to a network; a kind overrides what it needs."""

    def __init__(self, network: NetworkSettings):
        self.network = network

    def embedding(self, width: int) -> TensorModule | None:
        """(ids, positions or None) -> (L, width) or (B, L, width), added to the token embedding."""
        return None

    def score_bias(self, both_ways: bool) -> TensorModule | None:
        """One module a stack: (queries, keys, dtype) -> (1, heads, Q, K), added to the scores of all its layers.
        `both_ways`: keys on either side of a query are seen."""
        return None

    def distances(self) -> nn.Module | None:
        """What each layer's relative scores are made of, once a forward pass (Transformer-XL)."""
        return None

    def rotation(self, local: bool, positions: Tensor, query: Tensor | None) -> Rotation | None:
        """What rotates the queries and keys of layers that see a window (`local`) or everything."""
        return None


def position_of(network: NetworkSettings) -> Position:
    made: Position = registry.get("position", network.position.kind).build(network)
    return made


class LearnedPosition(PositionSettings):
    """One vector for each position (BERT)."""

    kind: Literal["learned"]
    maximum: Count  # how many positions there are
    offset: Natural = 0  # unused rows before the first position (RoBERTa has two)
    counts: Literal["places", "tokens"] = "places"  # tokens: padding in front of a text is not counted (RoBERTa)

    size_keys: ClassVar[tuple[str, ...]] = ("maximum",)

    @property
    def longest(self) -> int:
        return self.maximum

    @property
    def skips_padding(self) -> bool:
        return self.counts == "tokens"

    def parameters(self, width: int) -> int:
        return self.maximum * width


@register("position", "learned", LearnedPosition)
class Learned(Position):
    def embedding(self, width: int) -> TensorModule:
        from stemma.network.initialization import draw_of
        from stemma.network.position import Learned

        chosen = self.network.position
        assert isinstance(chosen, LearnedPosition)
        return Learned(chosen.maximum, width, chosen.offset, draw_of(self.network))


class SinusoidalPosition(PositionSettings):
    """Sines and cosines of each position (arXiv:1706.03762)."""

    kind: Literal["sinusoidal"]
    maximum: Count

    per_step: ClassVar[bool] = True
    size_keys: ClassVar[tuple[str, ...]] = ("maximum",)

    @property
    def longest(self) -> int:
        return self.maximum


@register("position", "sinusoidal", SinusoidalPosition)
class Sinusoidal(Position):
    def embedding(self, width: int) -> TensorModule:
        from stemma.network.position import Sinusoidal

        return Sinusoidal(width)


class RelativePosition(PositionSettings):
    """Only how far apart query and key stand (Transformer-XL), so a memory needs no position numbers."""

    kind: Literal["relative_xl"]
    clamp: Count | None = None  # distances beyond this all count as this one

    needs: ClassVar[frozenset[str]] = frozenset({"relative"})
    relative: ClassVar[bool] = True


@register("position", "relative_xl", RelativePosition)
class Relative(Position):
    def distances(self) -> nn.Module:
        from stemma.network.distance import RelativeSinusoids

        chosen = self.network.position
        assert isinstance(chosen, RelativePosition)
        return RelativeSinusoids(self.network.width, chosen.clamp, self.network.dropout)


class BucketedPosition(PositionSettings):
    """One number a head for each class of distances, added to the scores: near ones alone, far ones together (T5)."""

    kind: Literal["bucketed"]
    buckets: Annotated[int, limit(lambda n: n >= 4 and n % 4 == 0, "must be a multiple of 4: half of them lie behind, "
                                                                   "and half of those hold one distance each")] = 32
    distance: Count = 128  # from here on all distances share a bucket

    needs: ClassVar[frozenset[str]] = frozenset({"score_bias"})

    def conflicts(self) -> Iterator[Conflict]:
        if self.distance <= self.buckets // 2:
            yield (Blame("distance", f"must be more than half of the {self.buckets} buckets"),
                   Blame("buckets", f"must be fewer than twice the distance of {self.distance}"))


@register("position", "bucketed", BucketedPosition)
class Bucketed(Position):
    def score_bias(self, both_ways: bool) -> TensorModule:
        from stemma.network.buckets import BucketedDistances
        from stemma.network.initialization import draw_of

        chosen = self.network.position
        assert isinstance(chosen, BucketedPosition)
        return BucketedDistances(chosen, self.network.heads, both_ways, draw_of(self.network))


Base = Annotated[float, limit(lambda x: x > 1, "must be greater than 1")]


class RotaryPosition(PositionSettings):
    """Queries and keys are turned by an angle that grows with their position (arXiv:2104.09864)."""

    kind: Literal["rotary"]
    maximum: Count  # how long a text may be
    base: Base = 10_000.0  # the slowest angle grows by about 1 / base a position: a larger one tells farther distances
    local_base: Base | None = None  # the same in layers that have a window; None = base

    needs: ClassVar[frozenset[str]] = frozenset({"rotation"})
    size_keys: ClassVar[tuple[str, ...]] = ("maximum",)

    @property
    def longest(self) -> int:
        return self.maximum


@register("position", "rotary", RotaryPosition)
class Rotary(Position):
    def rotation(self, local: bool, positions: Tensor, query: Tensor | None) -> Rotation:
        from stemma.network.rotary import rotation

        chosen, network = self.network.position, self.network
        assert isinstance(chosen, RotaryPosition)
        return rotation(chosen, local, network.attention.head_width or network.width // network.heads, positions, query)


class NoPosition(PositionSettings):
    kind: Literal["none"]

    per_step: ClassVar[bool] = True  # there is nothing to add


@register("position", "none", NoPosition)
class Nothing(Position):
    """What attention and feed-forward layers do is the same in any order."""
