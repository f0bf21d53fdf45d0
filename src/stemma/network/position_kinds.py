"""The kinds of positions: settings, and what each brings to a network. A kind may add to the embedding, add to the
scores of attention, or rotate queries and keys; modules are imported when they are built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from stemma import registry
from stemma.registry import register
from stemma.schema.base import Conflict, ConflictKey, Count, Natural, constraint
from stemma.schema.network import NetworkSettings
from stemma.schema.parts import PositionSettings

if TYPE_CHECKING:  # settings are read before torch is imported
    from torch import Tensor, nn

    from stemma.network.module import TensorModule
    from stemma.network.rotary import RotaryRotation


class PositionScheme:
    """What positions of a kind bring to a network; a kind overrides what it needs."""

    def __init__(self, network: NetworkSettings):
        self.network = network

    def build_embedding(self, width: int) -> TensorModule | None:
        """(ids, positions or None) -> (L, width) or (B, L, width), added to the token embedding."""
        return None

    def build_score_bias(self, bidirectional: bool) -> TensorModule | None:
        """One module a stack: (queries, keys, dtype) -> (1, heads, Q, K), added to the scores of all its layers.
        `both_ways`: keys on either side of a query are seen."""
        return None

    def build_relative_positions(self) -> nn.Module | None:
        """What each layer's relative scores are made of, once a forward pass (Transformer-XL)."""
        return None

    def rotation(self, local: bool, position_ids: Tensor, query_positions: Tensor | None) -> RotaryRotation | None:
        """What rotates the queries and keys of layers that see a window (`local`) or everything."""
        return None


def build_position_scheme(network: NetworkSettings) -> PositionScheme:
    made: PositionScheme = registry.get("position", network.position.kind).build(network)
    return made


class LearnedPositionSettings(PositionSettings):
    """One vector for each position (BERT)."""

    kind: Literal["learned"]
    maximum: Count  # how many positions there are
    offset: Natural = 0  # unused rows before the first position (RoBERTa has two)
    counts: Literal["places", "tokens"] = "places"  # tokens: padding in front of a text is not counted (RoBERTa)

    size_keys: ClassVar[tuple[str, ...]] = ("maximum",)

    @property
    def max_length(self) -> int:
        return self.maximum

    @property
    def skips_padding(self) -> bool:
        return self.counts == "tokens"

    def num_parameters(self, width: int) -> int:
        return self.maximum * width


@register("position", "learned", LearnedPositionSettings)
class LearnedScheme(PositionScheme):
    def build_embedding(self, width: int) -> TensorModule:
        from stemma.network.initialization import default_initializer
        from stemma.network.position_embedding import LearnedPositionEmbedding

        chosen = self.network.position
        assert isinstance(chosen, LearnedPositionSettings)
        return LearnedPositionEmbedding(chosen.maximum, width, chosen.offset, default_initializer(self.network))


class SinusoidalPositionSettings(PositionSettings):
    """Sines and cosines of each position (arXiv:1706.03762)."""

    kind: Literal["sinusoidal"]
    maximum: Count

    addable_per_step: ClassVar[bool] = True
    size_keys: ClassVar[tuple[str, ...]] = ("maximum",)

    @property
    def max_length(self) -> int:
        return self.maximum


@register("position", "sinusoidal", SinusoidalPositionSettings)
class SinusoidalScheme(PositionScheme):
    def build_embedding(self, width: int) -> TensorModule:
        from stemma.network.position_embedding import SinusoidalPositionEmbedding

        return SinusoidalPositionEmbedding(width)


class RelativePositionSettings(PositionSettings):
    """Only how far apart query and key stand (Transformer-XL), so a memory needs no position numbers."""

    kind: Literal["relative_xl"]
    clamp: Count | None = None  # distances beyond this all count as this one

    required_features: ClassVar[frozenset[str]] = frozenset({"relative"})
    relative: ClassVar[bool] = True


@register("position", "relative_xl", RelativePositionSettings)
class RelativeScheme(PositionScheme):
    def build_relative_positions(self) -> nn.Module:
        from stemma.network.relative_position import RelativeSinusoidalEncoding

        chosen = self.network.position
        assert isinstance(chosen, RelativePositionSettings)
        return RelativeSinusoidalEncoding(self.network.width, chosen.clamp, self.network.dropout)


class BucketedPositionSettings(PositionSettings):
    """One number a head for each class of distances, added to the scores: near ones alone, far ones together (T5)."""

    kind: Literal["bucketed"]
    buckets: Annotated[int, constraint(lambda n: n >= 4 and n % 4 == 0,
                                       "must be a multiple of 4: half of them lie behind, "
                                                                   "and half of those hold one distance each")] = 32
    distance: Count = 128  # from here on all distances share a bucket

    required_features: ClassVar[frozenset[str]] = frozenset({"score_bias"})

    def conflicts(self) -> Iterator[Conflict]:
        if self.distance <= self.buckets // 2:
            yield (ConflictKey("distance", f"must be more than half of the {self.buckets} buckets"),
                   ConflictKey("buckets", f"must be fewer than twice the distance of {self.distance}"))


@register("position", "bucketed", BucketedPositionSettings)
class BucketedScheme(PositionScheme):
    def build_score_bias(self, bidirectional: bool) -> TensorModule:
        from stemma.network.initialization import default_initializer
        from stemma.network.relative_bias import RelativePositionBias

        chosen = self.network.position
        assert isinstance(chosen, BucketedPositionSettings)
        return RelativePositionBias(chosen, self.network.heads, bidirectional, default_initializer(self.network))


RotaryBase = Annotated[float, constraint(lambda x: x > 1, "must be greater than 1")]


class RotaryPositionSettings(PositionSettings):
    """Queries and keys are turned by an angle that grows with their position (arXiv:2104.09864)."""

    kind: Literal["rotary"]
    maximum: Count  # how long a text may be
    base: RotaryBase = 10_000.0  # the slowest angle grows by about 1 / base a position: a larger one tells farther
    #                              distances
    local_base: RotaryBase | None = None  # the same in layers that have a window; None = base

    required_features: ClassVar[frozenset[str]] = frozenset({"rotation"})
    size_keys: ClassVar[tuple[str, ...]] = ("maximum",)

    @property
    def max_length(self) -> int:
        return self.maximum


@register("position", "rotary", RotaryPositionSettings)
class RotaryScheme(PositionScheme):
    def rotation(self, local: bool, position_ids: Tensor, query_positions: Tensor | None) -> RotaryRotation:
        from stemma.network.rotary import build_rotation

        chosen, network = self.network.position, self.network
        assert isinstance(chosen, RotaryPositionSettings)
        return build_rotation(chosen, local, network.attention.head_width or network.width // network.heads,
                              position_ids, query_positions)


class NoPositionSettings(PositionSettings):
    kind: Literal["none"]

    addable_per_step: ClassVar[bool] = True  # there is nothing to add


@register("position", "none", NoPositionSettings)
class NoPositionScheme(PositionScheme):
    """What attention and feed-forward layers do is the same in any order."""
