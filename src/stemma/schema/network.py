"""What a network is made of: sizes, and one kind for each exchangeable part."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Literal

from pydantic import Field

from stemma import registry
from stemma.schema.base import (
    BelowOne,
    Blame,
    Conflict,
    Count,
    Depth,
    KindName,
    Natural,
    Positive,
    Settings,
    Slot,
    Width,
    limit,
)
from stemma.schema.parts import FEATURES, AttentionSettings, BodySettings, PositionSettings

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
    quiet: bool = False  # scores of tokens are divided by the square root of the width: a loud table (T5)

    def conflicts(self) -> Iterator[Conflict]:
        if self.cutoffs != sorted(set(self.cutoffs)):
            yield (Blame("cutoffs", "must be in ascending order"),)


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
            yield (Blame("weight", "a norm without weights has no bias either: set network.norm.bias=false too"),
                   Blame("bias", "needs network.norm.weight=true"))
        if not self.first and self.place == "post":
            yield (Blame("first", "is about norms before each sublayer: set network.norm.place=pre"),
                   Blame("place", "with post, network.norm.first=false has no meaning"))


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
            yield (Blame("zero_output", "leaves nothing to scale: set network.initialization.residual=false"),
                   Blame("residual", "has no effect with network.initialization.zero_output"))

    def scale(self, width: int) -> float:
        return self.spread if self.spread is not None else width**-0.5


Places = Annotated[int, limit(lambda n: n >= 1, "must be 1 or more; remove=network.memory reads every segment by "
                                                "itself")]


class MemorySettings(Settings):
    """What was read before stays in sight, without a gradient (Transformer-XL)."""

    size_keys = ("length", "evaluation")

    length: Places  # kept while training
    evaluation: Places | None = None  # kept otherwise; None = as in training
    start: Literal["empty", "zeros"] = "empty"  # what stands there before anything was read
    same_length: bool = False  # nobody sees farther than the memory is long, wherever in the segment he stands


class DecoderSettings(Settings):
    """A second stack that writes, and looks at the first one's output. It shares the token embedding."""

    size_keys = ("layers",)

    layers: Depth


class GeneratorSettings(Settings):
    """A second, smaller network that fills in what is hidden, for the first to find out (ELECTRA). It reads by the
    first one's embedding."""

    size_keys = ("multiplier",)

    multiplier: Annotated[float, limit(lambda x: 0 < x <= 1, "must be greater than 0 and at most 1")]  # of width,
    #                                                                                     heads and feed-forward
    layers: Depth | None = None  # None = as many as the network


class NetworkSettings(Settings):
    size_keys = ("layers", "width", "heads", "feedforward", "dropout", "inner_dropout", "output_dropout")
    laptop_keys = ("initialization",)
    structural_keys = ("transition",)
    adjustable_keys = ("dropout", "inner_dropout", "output_dropout")
    one_decision = (("dropout", "attention.dropout", "attention.output_dropout", "inner_dropout", "output_dropout"),
                    ("bias", "attention.bias"),
                    ("initialization.*", "embedding.scale", "embedding.quiet", "attention.scale"))

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
    position: Annotated[PositionSettings, Slot("position")]
    attention: Annotated[AttentionSettings, Slot("attention")]
    norm: NormSettings
    initialization: InitializationSettings
    memory: MemorySettings | None = None
    depth: Annotated[BodySettings, Slot("body")] = Field(
        default_factory=lambda: registry.settings_of("body", {"kind": "stacked"}))
    transition: Annotated[str, KindName("feedforward")] = "feedforward"  # what follows attention in a block;
    #                                                   gated: GeGLU or SwiGLU, by the activation (arXiv:2002.05202)
    decoder: DecoderSettings | None = None
    sharing: Literal["none", "all", "attention", "feedforward"] = "none"  # what all layers have in common (ALBERT)
    generator: GeneratorSettings | None = None

    @property
    def all_layers(self) -> int:
        """Of the encoder and a decoder; the embedding is none."""
        return self.layers + (self.decoder.layers if self.decoder is not None else 0)

    @property
    def longest(self) -> int | None:
        """How many tokens can be read at once; None: any number."""
        return self.position.longest

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
        relative, one_block = self.position.relative, self.depth.one_block
        yield from self._unsupported()
        if self.memory is not None and not relative:
            yield (Blame("memory", "needs network.position.kind=relative_xl: places of the past have no number"),
                   Blame("position.kind", "with network.memory only relative_xl will do (or remove=network.memory)"))
        if self.attention.segments and not relative:
            yield (Blame("attention.segments", "needs network.position.kind=relative_xl"),
                   Blame("position.kind", "with network.attention.segments only relative_xl will do"))
        if self.depth.adds_positions and self.position.needs:
            yield (Blame("depth.kind", "recurrent depth adds places at every step: it needs sinusoidal positions"),
                   Blame("position.kind", "with recurrent depth only sinusoidal will do"))
        if "rotation" in self.position.needs:
            yield from self._unpaired()
        if not self.norm.first and self.sharing in ("attention", "all"):
            yield (Blame("norm.first", f"network.sharing = {self.sharing} gives all layers one norm"),
                   Blame("sharing", "the first layer has no norm to share (network.norm.first=false)"))
        if self.decoder is not None:
            yield from self._alone()
        if self.generator is not None:
            yield from self._beside_generator()
        if one_block and self.sharing != "none":
            yield (Blame("sharing", "recurrent depth has one block for all its steps already"),
                   Blame("depth.kind", "recurrent depth shares all there is; leave network.sharing out"))
        if one_block and any(self.attention.windows):
            yield (Blame("attention.windows", "are taken in turn by layers, and recurrent depth has one layer"),)
        if one_block and self.embedding.query:
            yield (Blame("embedding.query", "a second stream is not supported with recurrent depth"),
                   Blame("depth.kind", "recurrent depth does not support a second stream (network.embedding.query)"))
        if self.embedding.cutoffs and self.embedding.width is not None:
            yield (Blame("embedding.cutoffs", "already say how wide each part is; leave network.embedding.width out"),
                   Blame("embedding.width", "does not combine with network.embedding.cutoffs"))

    def _unsupported(self) -> Iterator[Conflict]:
        """What this kind of attention cannot do and another part of the network asks for."""
        asking = {"position.kind": self.position.needs, "memory": {"memory"} if self.memory is not None else set(),
                  "attention.windows": {"windows"} if any(self.attention.windows) else set(),
                  "attention.segments": {"relative"} if self.attention.segments else set(),
                  "embedding.query": {"masks"} if self.embedding.query else set(),
                  "decoder": {"causal", "cache"} if self.decoder is not None else set()}
        for key, features in asking.items():
            yield from self.lacking(features, f"network.{key}", key)

    def lacking(self, features: Collection[str], whose: str, key: str = "") -> Iterator[Conflict]:
        """A conflict for each feature that `whose` key needs and attention of this kind does not have."""
        for feature in sorted(set(features) - self.attention.supports):
            what = f"attention of kind {self.attention.kind} {FEATURES[feature]}"
            yield (Blame("attention.kind", f"{what}, which {whose} needs"),
                   *((Blame(key, f"{what}: choose another network.attention.kind"),) if key else ()))

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
        present = {"memory": self.memory is not None, "depth.kind": self.depth.one_block,
                   "position.kind": self.position.relative, "embedding.query": self.embedding.query,
                   "embedding.tasks": self.embedding.tasks > 0,
                   "embedding.cutoffs": bool(self.embedding.cutoffs), "attention.windows": any(self.attention.windows),
                   "embedding.width": self.embedding.width is not None}
        for key, there in present.items():
            if there:
                yield (Blame(key, "is not supported beside a decoder (or remove=network.decoder)"),
                       Blame("decoder", f"is not supported beside network.{key}"))
