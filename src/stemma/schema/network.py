"""What a network is made of: sizes, and one kind for each exchangeable part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from stemma.schema.base import (
    BY_KIND,
    BelowOne,
    Blame,
    Conflict,
    Count,
    Depth,
    Natural,
    NonNegative,
    Positive,
    Settings,
    Share,
    Width,
    at_most_all,
    limit,
)

Activation = Literal["gelu", "gelu_tanh", "relu", "tanh", "silu"]


class EmbeddingSettings(Settings):
    width: Width | None = None  # narrower than the network: a factorised table (ALBERT); None = the network's width
    segments: Natural = 0  # how many segment vectors; 0 = none
    tasks: Natural = 0  # how many task vectors; 0 = none (ERNIE 2.0)
    scale: bool = False  # multiply by the square root of the width
    norm: bool = False  # normalise the sum of token, segment and position
    query: bool = False  # one more vector: a place whose token must not be seen (XLNet's second stream)
    cutoffs: list[Count] = []  # a vocabulary sorted by frequency, parted here: rare words get narrower vectors
    shrink: Count = 4  # each part's vectors are so many times narrower than the part's before
    dropout: BelowOne | None = None  # of the sum; None = network.dropout
    quiet: bool = False  # scores of tokens are divided by the square root of the width: a loud table (T5)

    def conflicts(self) -> Iterator[Conflict]:
        if self.cutoffs != sorted(set(self.cutoffs)):
            yield (Blame("cutoffs", "must be in ascending order"),)


class LearnedPosition(Settings):
    kind: Literal["learned"]
    maximum: Count  # how many places can be used
    offset: Natural = 0  # unused rows before the first place (RoBERTa has two)
    counts: Literal["places", "tokens"] = "places"  # tokens: filling in front of a text is not counted (RoBERTa)


class SinusoidalPosition(Settings):
    kind: Literal["sinusoidal"]
    maximum: Count


class NoPosition(Settings):
    kind: Literal["none"]


class RelativePosition(Settings):
    """Only how far apart query and key stand (Transformer-XL), so a memory needs no place numbers."""

    kind: Literal["relative_xl"]
    clamp: Count | None = None  # distances beyond this all count as this one


Base = Annotated[float, limit(lambda x: x > 1, "must be greater than 1")]


class RotaryPosition(Settings):
    """Queries and keys are turned by an angle that grows with their position (arXiv:2104.09864)."""

    kind: Literal["rotary"]
    maximum: Count  # how long a text may be
    base: Base = 10_000.0  # the slowest angle grows by about 1 / base a position: a larger one tells farther distances
    local_base: Base | None = None  # the same in layers that have a window; None = base


class BucketedPosition(Settings):
    """One number a head for each class of distances, added to the scores: near ones alone, far ones together (T5)."""

    kind: Literal["bucketed"]
    buckets: Annotated[int, limit(lambda n: n >= 4 and n % 4 == 0, "must be a multiple of 4: half of them lie behind, "
                                                                   "and half of those hold one distance each")] = 32
    distance: Count = 128  # from here on all distances share a bucket

    def conflicts(self) -> Iterator[Conflict]:
        if self.distance <= self.buckets // 2:
            yield (Blame("distance", f"must be more than half of the {self.buckets} buckets"),
                   Blame("buckets", f"must be fewer than twice the distance of {self.distance}"))


PositionSettings = Annotated[LearnedPosition | SinusoidalPosition | RelativePosition | BucketedPosition | RotaryPosition
                             | NoPosition, BY_KIND]


Window = Annotated[int, limit(lambda n: n >= 0, "a window must be 1 or more (0 = the whole text)"), at_most_all]


class FullAttention(Settings):
    kind: Literal["full"]
    dropout: BelowOne
    output_dropout: BelowOne | None = None  # of what attention adds to the residual; None = network.dropout
    head_width: Width | None = None  # None = width / heads
    bias: bool = True  # constants beside the matrices
    scale: bool = True  # divide scores by the square root of the heads' width; T5 starts with smaller queries instead
    segments: bool = False  # score whether query and key belong to the same segment (XLNet)
    windows: list[Window] = []  # taken in turn by the layers: how many tokens each token sees, itself the last of them
    #                             (GPT-3), or on either side of it where both sides are read (ModernBERT); 0 = all


AttentionSettings = FullAttention  # one kind so far; the second one makes this a union, as above


class NormSettings(Settings):
    kind: Literal["layer", "scale"]  # scale: only the size is brought to 1, the mean is left alone (T5)
    place: Literal["post", "pre"]
    epsilon: Positive
    weight: bool = True  # a factor for each number, learned
    bias: bool = True  # and a constant; kind scale has none
    first: bool = True  # false, with place = pre: none before the first attention, which reads the embedding's

    def conflicts(self) -> Iterator[Conflict]:
        if self.kind == "layer" and self.bias and not self.weight:
            yield (Blame("weight", "a norm without weights has no bias either: set network.norm.bias=false too"),
                   Blame("bias", "needs network.norm.weight=true"))
        if not self.first and self.place == "post":
            yield (Blame("first", "is about norms before each sublayer: set network.norm.place=pre"),
                   Blame("place", "with post, network.norm.first=false has no meaning"))


class InitializationSettings(Settings):
    spread: Positive | None = None  # standard deviation, before anything is cut off; None = 1 / sqrt(width)
    distribution: Literal["truncated_normal", "normal"] = "truncated_normal"  # truncated: nothing beyond two standard
    #                                                                           deviations, as in BERT's code
    residual: bool = False  # what is added to the residual starts smaller by the root of how many are added (GPT-2)
    zero_output: bool = False  # the same start at zero: every block begins as the identity
    by_input: bool = False  # each matrix by itself: 1 / sqrt(what enters it) (T5)
    embedding: Positive | None = None  # of the embedding table; None = as everything else

    def conflicts(self) -> Iterator[Conflict]:
        if self.residual and self.zero_output:
            yield (Blame("zero_output", "leaves nothing to scale: set network.initialization.residual=false"),
                   Blame("residual", "has no effect with network.initialization.zero_output"))

    def scale(self, width: int) -> float:
        return self.spread if self.spread is not None else width**-0.5


Places = Annotated[int, limit(lambda n: n >= 1, "must be 1 or more; remove=network.memory reads every segment by "
                                                "itself")]


class MemorySettings(Settings):
    """What was read before stays in sight, without a gradient (Transformer-XL)."""

    length: Places  # kept while training
    evaluation: Places | None = None  # kept otherwise; None = as in training
    start: Literal["empty", "zeros"] = "empty"  # what stands there before anything was read
    same_length: bool = False  # nobody sees farther than the memory is long, wherever in the segment he stands


class StackedDepth(Settings):
    kind: Literal["stacked"]


class HaltingSettings(Settings):
    """Each place decides how many steps it takes (arXiv:1603.08983)."""

    threshold: Share = 0.99  # a place stops once its halting probabilities add up to this
    cost: NonNegative = 0.01  # of one step at one place, beside the loss
    bias: float = 1.0  # where the halting unit starts: at 1 (the authors') a place takes about two steps at first
    limit: Literal["open", "full"] = "open"  # after the last step possible, the weight that is left is dropped, as in
    #                                          the paper's listing, or goes to the last state: then weights add up to 1


class RecurrentDepth(Settings):
    """One block, applied `layers` times (Universal Transformer)."""

    kind: Literal["recurrent"]
    halting: HaltingSettings | None = None  # None = every place takes every step


DepthSettings = Annotated[StackedDepth | RecurrentDepth, BY_KIND]


class DecoderSettings(Settings):
    """A second stack that writes, and looks at the first one's output. It shares the table of tokens."""

    layers: Depth


class GeneratorSettings(Settings):
    """A second, smaller network that fills in what is hidden, for the first to find out (ELECTRA). It reads by the
    first one's embedding."""

    multiplier: Annotated[float, limit(lambda x: 0 < x <= 1, "must be greater than 0 and at most 1")]  # of width,
    #                                                                                     heads and feed-forward
    layers: Depth | None = None  # None = as many as the network


class NetworkSettings(Settings):
    layers: Depth
    width: Width
    heads: Width
    feedforward: Width
    dropout: BelowOne
    inner_dropout: BelowOne = 0.0  # between the two maps of the feed-forward layer
    output_dropout: BelowOne = 0.0  # of a stack's output, behind its last norm (T5, Transformer-XL, XLNet)
    activation: Activation
    bias: bool = True  # constants beside the feed-forward matrices, and in a head's own layer
    embedding: EmbeddingSettings = EmbeddingSettings()
    position: PositionSettings
    attention: AttentionSettings
    norm: NormSettings
    initialization: InitializationSettings
    memory: MemorySettings | None = None
    depth: DepthSettings = StackedDepth(kind="stacked")
    transition: Literal["feedforward", "gated", "convolution"] = "feedforward"  # what follows attention in a block;
    #                                                   gated: GeGLU or SwiGLU, by the activation (arXiv:2002.05202)
    decoder: DecoderSettings | None = None
    sharing: Literal["none", "all", "attention", "feedforward"] = "none"  # what all layers have in common (ALBERT)
    generator: GeneratorSettings | None = None

    @property
    def longest(self) -> int | None:
        """How many tokens can be read at once; None: any number."""
        return getattr(self.position, "maximum", None)

    def of_generator(self) -> NetworkSettings:
        """The generator's own: a network without a generator, narrower by the multiplier, over the same embedding. Its
        heads become as many fewer, and fewer still where its width could not be parted among them."""
        assert self.generator is not None
        by = self.generator.multiplier
        width, most = max(1, round(self.width * by)), max(1, round(self.heads * by))
        heads = most if self.attention.head_width else max(n for n in range(1, most + 1) if width % n == 0)
        embedding = self.embedding.model_copy(update={"width": self.embedding.width or self.width})
        return self.model_copy(update={"layers": self.generator.layers or self.layers, "width": width, "heads": heads,
                                       "feedforward": max(1, round(self.feedforward * by)), "embedding": embedding,
                                       "generator": None})

    def conflicts(self) -> Iterator[Conflict]:
        if self.attention.head_width is None and self.width % self.heads:
            divisors = [n for n in range(1, self.width + 1) if self.width % n == 0]
            heads = min(divisors, key=lambda n: (abs(n - self.heads), -n))
            width = max(round(self.width / self.heads), 1) * self.heads
            yield (Blame("heads", f"width {self.width} is not divisible by {self.heads} (try {heads})"),
                   Blame("width", f"is not divisible by {self.heads} heads (try {width})"))
        relative, recurrent = self.position.kind == "relative_xl", self.depth.kind == "recurrent"
        if self.memory is not None and not relative:
            yield (Blame("memory", "needs network.position.kind=relative_xl: places of the past have no number"),
                   Blame("position.kind", "with network.memory only relative_xl will do (or remove=network.memory)"))
        if self.attention.segments and not relative:
            yield (Blame("attention.segments", "needs network.position.kind=relative_xl"),
                   Blame("position.kind", "with network.attention.segments only relative_xl will do"))
        if recurrent and self.position.kind in ("relative_xl", "bucketed", "rotary"):
            yield (Blame("depth.kind", "recurrent depth adds places at every step: it needs sinusoidal positions"),
                   Blame("position.kind", "with recurrent depth only sinusoidal will do"))
        if self.position.kind == "rotary":
            yield from self._unpaired()
        if not self.norm.first and self.sharing in ("attention", "all"):
            yield (Blame("norm.first", f"network.sharing = {self.sharing} gives all layers one norm"),
                   Blame("sharing", "the first layer has no norm to share (network.norm.first=false)"))
        if self.decoder is not None:
            yield from self._alone()
        if self.generator is not None:
            yield from self._beside_generator()
        if recurrent and self.sharing != "none":
            yield (Blame("sharing", "recurrent depth has one block for all its steps already"),
                   Blame("depth.kind", "recurrent depth shares all there is; leave network.sharing out"))
        if recurrent and any(self.attention.windows):
            yield (Blame("attention.windows", "are taken in turn by layers, and recurrent depth has one layer"),)
        if recurrent and self.embedding.query:
            yield (Blame("embedding.query", "a second stream is not supported with recurrent depth"),
                   Blame("depth.kind", "recurrent depth does not support a second stream (network.embedding.query)"))
        if self.embedding.cutoffs and self.embedding.width is not None:
            yield (Blame("embedding.cutoffs", "already say how wide each part is; leave network.embedding.width out"),
                   Blame("embedding.width", "does not combine with network.embedding.cutoffs"))

    def _unpaired(self) -> Iterator[Conflict]:
        """Rotary positions turn pairs of numbers."""
        networks = {"": self}
        if self.generator is not None:
            networks["the generator's "] = self.of_generator()
        for whose, network in networks.items():
            width = network.attention.head_width or network.width // network.heads
            if width % 2:
                what = f"rotary positions turn pairs of numbers, and {whose}heads are {width} wide: an even width is " \
                       "needed"
                keys = ["attention.head_width"] if self.attention.head_width else ["heads", "width"]
                yield tuple(Blame(key, what) for key in [*keys, "position.kind", *(["generator"] if whose else [])])

    def _beside_generator(self) -> Iterator[Conflict]:
        """What a network with a generator cannot have: both read a row whole, once, by a table that is in one piece."""
        present = {"memory": self.memory is not None, "decoder": self.decoder is not None,
                   "embedding.query": self.embedding.query, "embedding.cutoffs": bool(self.embedding.cutoffs)}
        for key, there in present.items():
            if there:
                yield (Blame(key, "is not supported beside a generator (or remove=network.generator)"),
                       Blame("generator", f"is not supported beside network.{key}"))

    def _alone(self) -> Iterator[Conflict]:
        """What a network with a decoder cannot have."""
        present = {"memory": self.memory is not None, "depth.kind": self.depth.kind == "recurrent",
                   "position.kind": self.position.kind == "relative_xl", "embedding.query": self.embedding.query,
                   "embedding.tasks": self.embedding.tasks > 0,
                   "embedding.cutoffs": bool(self.embedding.cutoffs), "attention.windows": any(self.attention.windows),
                   "embedding.width": self.embedding.width is not None}
        for key, there in present.items():
            if there:
                yield (Blame(key, "is not supported beside a decoder (or remove=network.decoder)"),
                       Blame("decoder", f"is not supported beside network.{key}"))
