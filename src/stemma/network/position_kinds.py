"""The registered kinds of positions. A kind may add to the embedding, add to the attention scores, or rotate queries
and keys. Modules are imported when they are built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from stemma import registry
from stemma.registry import register
from stemma.schema.base import Conflict, ConflictKey, Count, Natural, constraint
from stemma.schema.network import NetworkSettings
from stemma.schema.parts import PositionSettings

if TYPE_CHECKING:  # recipes are checked without importing torch
    from torch import Tensor, nn

    from stemma.network.module import TensorModule
    from stemma.network.rotary import RotaryRotation


class PositionScheme:
    """The modules of a kind of positions. A kind overrides the methods that it needs."""

    def __init__(self, network: NetworkSettings):
        self.network = network

    def build_embedding(self, width: int) -> TensorModule | None:
        """(input_ids, position_ids or None) -> (L, width) or (B, L, width), added to the token embedding."""
        return None

    def build_score_bias(self, bidirectional: bool) -> TensorModule | None:
        """One module per stack: (num_queries, num_keys, dtype) -> (1, heads, Q, K), added to the scores of all layers.
        `bidirectional`: queries attend to later keys too."""
        return None

    def build_relative_positions(self) -> nn.Module | None:
        """Encoding of the relative positions, computed once per forward pass for all layers (Transformer-XL)."""
        return None

    def rotation(self, local: bool, position_ids: Tensor, query_positions: Tensor | None) -> RotaryRotation | None:
        """Rotation of queries and keys, of layers with a sliding window (`local`) or without."""
        return None


def build_position_scheme(network: NetworkSettings) -> PositionScheme:
    scheme: PositionScheme = registry.get("position", network.position.kind).build(network)
    return scheme


class LearnedPositionSettings(PositionSettings):
    """A learned embedding for each position (BERT)."""

    kind: Literal["learned"]
    maximum: Count  # number of positions
    offset: Natural = 0  # unused rows before the first position (RoBERTa has two)
    numbering: Literal["absolute", "skip_padding"] = "absolute"  # skip_padding: only tokens have a position (RoBERTa)

    size_keys: ClassVar[tuple[str, ...]] = ("maximum",)

    @property
    def max_length(self) -> int:
        return self.maximum

    @property
    def skips_padding(self) -> bool:
        return self.numbering == "skip_padding"

    def num_parameters(self, width: int) -> int:
        return self.maximum * width


@register("position", "learned", LearnedPositionSettings)
class LearnedScheme(PositionScheme):
    def build_embedding(self, width: int) -> TensorModule:
        from stemma.network.initialization import default_initializer
        from stemma.network.position_embedding import LearnedPositionEmbedding

        position = self.network.position
        assert isinstance(position, LearnedPositionSettings)
        return LearnedPositionEmbedding(position.maximum, width, position.offset, default_initializer(self.network))


class SinusoidalPositionSettings(PositionSettings):
    """Sinusoidal positions (arXiv:1706.03762)."""

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
    """Distances between query and key (Transformer-XL): a memory needs no absolute positions."""

    kind: Literal["relative_xl"]
    clamp: Count | None = None  # maximum distance; larger distances are clamped to it

    required_features: ClassVar[frozenset[str]] = frozenset({"relative"})
    relative: ClassVar[bool] = True


@register("position", "relative_xl", RelativePositionSettings)
class RelativeScheme(PositionScheme):
    def build_relative_positions(self) -> nn.Module:
        from stemma.network.relative_position import RelativeSinusoidalEncoding

        position = self.network.position
        assert isinstance(position, RelativePositionSettings)
        return RelativeSinusoidalEncoding(self.network.width, position.clamp, self.network.dropout)


class BucketedPositionSettings(PositionSettings):
    """A learned bias per head and distance bucket, added to the scores (T5)."""

    kind: Literal["bucketed"]
    buckets: Annotated[int, constraint(lambda n: n >= 4 and n % 4 == 0,
                                       "must be a multiple of 4: half of them are for earlier keys, and half of those "
                                       "hold one distance each")] = 32
    distance: Count = 128  # distances from here on share the last bucket

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

        position = self.network.position
        assert isinstance(position, BucketedPositionSettings)
        return RelativePositionBias(position, self.network.heads, bidirectional, default_initializer(self.network))


class DisentangledPositionSettings(PositionSettings):
    """An embedding per distance bucket, projected by each layer's query and key matrices (DeBERTa, LTG-BERT)."""

    kind: Literal["disentangled"]
    buckets: Annotated[int, constraint(lambda n: n >= 4 and n % 2 == 0,
                                       "must be even and at least 4: half of them hold one distance each")] = 32
    distance: Count = 512  # distances from here on share the last bucket, on either side

    required_features: ClassVar[frozenset[str]] = frozenset({"disentangled"})
    disentangled: ClassVar[bool] = True

    def conflicts(self) -> Iterator[Conflict]:
        if self.distance <= self.buckets // 2 + 1:
            yield (ConflictKey("distance", f"must be more than half of the {self.buckets} buckets"),
                   ConflictKey("buckets", f"must be fewer than twice the distance of {self.distance}"))

    def num_parameters(self, width: int) -> int:
        return (2 * self.buckets + 1) * width


@register("position", "disentangled", DisentangledPositionSettings)
class DisentangledScheme(PositionScheme):
    def build_relative_positions(self) -> nn.Module:
        from stemma.network.disentangled_position import BucketEmbedding
        from stemma.network.initialization import default_initializer

        position, network = self.network.position, self.network
        assert isinstance(position, DisentangledPositionSettings)
        return BucketEmbedding(position.buckets, position.distance, network.width, network.norm.epsilon,
                               default_initializer(network))


RotaryBase = Annotated[float, constraint(lambda x: x > 1, "must be greater than 1")]


class RotaryPositionSettings(PositionSettings):
    """Rotary positions: queries and keys are rotated by an angle proportional to their position (arXiv:2104.09864)."""

    kind: Literal["rotary"]
    maximum: Count  # maximum length
    base: RotaryBase = 10_000.0  # rope_theta; the slowest angle grows by about 1 / base per position
    local_base: RotaryBase | None = None  # base of layers with a sliding window; None = base
    clockwise: bool = False  # rotate by the negative angle: an equivalent network with other weights (nanochat)

    required_features: ClassVar[frozenset[str]] = frozenset({"rotation"})
    size_keys: ClassVar[tuple[str, ...]] = ("maximum",)

    @property
    def max_length(self) -> int:
        return self.maximum


@register("position", "rotary", RotaryPositionSettings)
class RotaryScheme(PositionScheme):
    def rotation(self, local: bool, position_ids: Tensor, query_positions: Tensor | None) -> RotaryRotation:
        from stemma.network.rotary import build_rotation

        position, network = self.network.position, self.network
        assert isinstance(position, RotaryPositionSettings)
        return build_rotation(position, local, network.attention.head_width or network.width // network.heads,
                              position_ids, query_positions)


class NoPositionSettings(PositionSettings):
    """No position information: attention is permutation-equivariant."""

    kind: Literal["none"]

    addable_per_step: ClassVar[bool] = True  # there is nothing to add


@register("position", "none", NoPositionSettings)
class NoPositionScheme(PositionScheme):
    """Builds nothing."""
