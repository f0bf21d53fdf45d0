"""What a network is made of: sizes, and one kind for each exchangeable part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from stemma.schema.base import BY_KIND, BelowOne, Blame, Conflict, Count, Natural, Positive, Settings

Activation = Literal["gelu", "gelu_tanh", "relu", "tanh", "silu"]


class EmbeddingSettings(Settings):
    width: Count | None = None  # narrower than the network: a factorised table (ALBERT); None = the network's width
    segments: Natural = 0  # how many segment vectors; 0 = none
    scale: bool = False  # multiply by the square root of the width
    norm: bool = False  # normalise the sum of token, segment and position


class LearnedPosition(Settings):
    kind: Literal["learned"]
    maximum: Count  # how many places can be used
    offset: Natural = 0  # unused rows before the first place (RoBERTa has two)


class SinusoidalPosition(Settings):
    kind: Literal["sinusoidal"]
    maximum: Count


class NoPosition(Settings):
    kind: Literal["none"]


PositionSettings = Annotated[LearnedPosition | SinusoidalPosition | NoPosition, BY_KIND]


class FullAttention(Settings):
    kind: Literal["full"]
    dropout: BelowOne
    head_width: Count | None = None  # None = width / heads


AttentionSettings = FullAttention  # one kind so far; the second one makes this a union, as above


class NormSettings(Settings):
    kind: Literal["layer"]
    place: Literal["post", "pre"]
    epsilon: Positive


class InitializationSettings(Settings):
    spread: Positive  # standard deviation of the truncated normal


class DecoderSettings(Settings):
    layers: Count


class NetworkSettings(Settings):
    layers: Count
    width: Count
    heads: Count
    feedforward: Count
    dropout: BelowOne
    activation: Activation
    embedding: EmbeddingSettings = EmbeddingSettings()
    position: PositionSettings
    attention: AttentionSettings
    norm: NormSettings
    initialization: InitializationSettings
    decoder: DecoderSettings | None = None

    def conflicts(self) -> Iterator[Conflict]:
        if self.attention.head_width is None and self.width % self.heads:
            divisors = [n for n in range(1, self.width + 1) if self.width % n == 0]
            heads = min(divisors, key=lambda n: (abs(n - self.heads), -n))
            width = max(round(self.width / self.heads), 1) * self.heads
            yield (Blame("heads", f"width {self.width} is not divisible by {self.heads} (try {heads})"),
                   Blame("width", f"is not divisible by {self.heads} heads (try {width})"))
