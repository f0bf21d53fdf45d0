"""The tables inside [network] that have no kinds: embedding, norm, how weights start, memory, decoder, generator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from stemma import registry
from stemma.schema.base import (
    BelowOne,
    Conflict,
    ConflictKey,
    Count,
    Depth,
    KindField,
    KindName,
    Natural,
    Positive,
    Settings,
    Width,
    constraint,
)
from stemma.schema.parts import BodySettings

Activation = Literal["gelu", "gelu_tanh", "relu", "tanh", "silu"]


class EmbeddingSettings(Settings):
    size_keys = ("width", "shrink")
    structural_keys = ("query", "norm")

    width: Width | None = None  # narrower than the network: a factorised table (ALBERT); None = the network's width
    segments: Natural = 0  # how many segment vectors; 0 = none
    tasks: Natural = 0  # how many task vectors; 0 = none (ERNIE 2.0)
    scale: bool = False  # multiply by the square root of the width
    norm: bool = False  # normalise the sum of token, segment and position
    query: bool = False  # one more vector: a place whose token must not be seen (XLNet's second stream)
    cutoffs: list[Count] = []  # a vocabulary sorted by frequency, parted here: rare words get narrower vectors
    shrink: Count = 4  # each part's vectors are so many times narrower than the part's before
    dropout: BelowOne | None = None  # of the sum; None = network.dropout
    fusion: Annotated[str | None, KindName("fusion", optional=True)] = None  # how tokens and network.inputs become one
    #                                                                          vector; None = sum
    quiet: bool = False  # scores of tokens are divided by the square root of the width: a loud table (T5)

    def conflicts(self) -> Iterator[Conflict]:
        if self.cutoffs != sorted(set(self.cutoffs)):
            yield (ConflictKey("cutoffs", "must be in ascending order"),)


class NormSettings(Settings):
    structural_keys = ("kind", "place")

    kind: Annotated[str, KindName("norm")]  # scale: only the size is brought to 1, the mean is left alone (T5)
    place: Literal["post", "pre"]
    epsilon: Positive
    weight: bool = True  # a factor for each number, learned
    bias: bool = True  # and a constant; kind scale has none
    first: bool = True  # false, with place = pre: none before the first attention, which reads the embedding's

    def conflicts(self) -> Iterator[Conflict]:
        if registry.get("norm", self.kind).settings.has_bias and self.bias and not self.weight:
            yield (ConflictKey("weight", "a norm without weights has no bias either: set network.norm.bias=false too"),
                   ConflictKey("bias", "needs network.norm.weight=true"))
        if not self.first and self.place == "post":
            yield (ConflictKey("first", "is about norms before each sublayer: set network.norm.place=pre"),
                   ConflictKey("place", "with post, network.norm.first=false has no meaning"))


class InitializationSettings(Settings):
    size_keys = ("spread",)
    adjustable_keys = ("distribution",)  # how weights are drawn is asked only of those that are new

    spread: Positive | None = None  # standard deviation, before anything is cut off; None = 1 / sqrt(width)
    distribution: Literal["truncated_normal", "normal"] = "truncated_normal"  # truncated: nothing beyond two standard
    #                                                                           deviations, as in BERT's code
    residual: bool = False  # what is added to the residual starts smaller by the root of how many are added (GPT-2)
    zero_output: bool = False  # the same start at zero: every block begins as the identity
    by_input: bool = False  # each matrix by itself: 1 / sqrt(what enters it) (T5)
    embedding: Positive | None = None  # of the embedding table; None = as everything else

    def conflicts(self) -> Iterator[Conflict]:
        if self.residual and self.zero_output:
            yield (ConflictKey("zero_output", "leaves nothing to scale: set network.initialization.residual=false"),
                   ConflictKey("residual", "has no effect with network.initialization.zero_output"))

    def std_for(self, width: int) -> float:
        return self.spread if self.spread is not None else width**-0.5


MemoryLength = Annotated[int, constraint(lambda n: n >= 1,
                                         "must be 1 or more; remove=network.memory reads every segment by "
                                                "itself")]


class MemorySettings(Settings):
    """What was read before stays in sight, without a gradient (Transformer-XL)."""

    size_keys = ("length", "evaluation")

    length: MemoryLength  # kept while training
    evaluation: MemoryLength | None = None  # kept otherwise; None = as in training
    start: Literal["empty", "zeros"] = "empty"  # what stands there before anything was read
    same_length: bool = False  # nobody sees farther than the memory is long, wherever in the segment he stands


class DecoderSettings(Settings):
    """A second body that writes, and attends to the first one's output. It shares the token embedding."""

    size_keys = ("layers",)

    layers: Depth
    depth: Annotated[BodySettings | None, KindField("body", optional=True)] = None  # its own body; None =
    #                                                                                 network.depth's


class GeneratorSettings(Settings):
    """A second, smaller network that fills in what is hidden, for the first to find out (ELECTRA). It reads by the
    first one's embedding."""

    size_keys = ("multiplier",)

    multiplier: Annotated[float, constraint(lambda x: 0 < x <= 1, "must be greater than 0 and at most 1")]  # of width,
    #                                                                                     heads and feed-forward
    layers: Depth | None = None  # None = as many as the network
