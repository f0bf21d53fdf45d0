"""Tables of [network] without kinds: embedding, norm, initialization, memory, decoder, generator."""

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

Activation = Literal["gelu", "gelu_tanh", "relu", "relu2", "tanh", "silu"]


class EmbeddingSettings(Settings):
    size_keys = ("width", "div_val", "dropout", "word_dropout")
    laptop_keys = ("scale",)
    structural_keys = ("query", "norm", "tied", "fixed", "tokens")
    adjustable_keys = ("word_dropout",)

    width: Width | None = None  # embedding size; smaller than the network's: factorized (ALBERT); None = network.width
    tokens: bool | None = None  # false = no token embedding, other inputs take its place (ELMo); None = true
    segments: Natural = 0  # number of segment embeddings; 0 = none
    tasks: Natural = 0  # number of task embeddings; 0 = none (ERNIE 2.0)
    scale: bool = False  # multiply by the square root of the width
    norm: bool = False  # normalize the sum of token, segment and position embeddings
    query: bool = False  # a learned embedding for query positions (XLNet's query stream)
    cutoffs: list[Count] = []  # adaptive embedding: the vocabulary, sorted by frequency, is split here
    div_val: Count = 4  # each part has an embedding size this many times smaller than the part before
    dropout: BelowOne | None = None  # of the sum; None = network.dropout
    variational: bool | None = None  # with one mask for all positions of a row (arXiv:1512.05287); None = no
    word_dropout: BelowOne | None = None  # of whole words: all occurrences in a batch (arXiv:1512.05287); None = 0
    # How tokens and network.inputs are combined; None = sum.
    fusion: Annotated[str | None, KindName("fusion", optional=True)] = None
    scale_logits: bool = False  # scale logits by 1/sqrt(width): the tied embedding is initialized with std 1 (T5)
    tied: bool = True  # the LM head's output matrix is the token embedding (arXiv:1608.05859)
    fixed: bool | None = None  # words with a vector in the file of `--vectors` keep it: it is not trained; None = no
    logit_softcap: Positive | None = None  # c: logits become c tanh(logits / c), so that none exceeds c (Gemma 2)

    def conflicts(self) -> Iterator[Conflict]:
        if self.tokens is False and self.tied:
            yield (ConflictKey("tied", "there is no token embedding to share (network.embedding.tokens=false): set "
                                       "false"),
                   ConflictKey("tokens", "an LM head shares the token embedding: set network.embedding.tied=false"))
        if self.tokens is False and self.cutoffs:
            yield (ConflictKey("cutoffs", "split a token embedding, and there is none: leave them out"),
                   ConflictKey("tokens", "network.embedding.cutoffs split the token embedding: leave it out"))
        if self.cutoffs != sorted(set(self.cutoffs)):
            yield (ConflictKey("cutoffs", "must be in ascending order"),)
        if self.fixed and (self.tied or self.cutoffs):
            yield (ConflictKey("fixed", "the output layer would train the same matrix: set "
                                        "network.embedding.tied=false, without cutoffs"),
                   ConflictKey("tied" if self.tied else "cutoffs",
                               "with network.embedding.fixed the output layer needs a matrix of its own"))
        if self.cutoffs and not self.tied:
            yield (ConflictKey("tied", "an adaptive softmax shares the adaptive embedding: leave it out"),
                   ConflictKey("cutoffs", "need network.embedding.tied=true"))
        if self.cutoffs and self.logit_softcap is not None:
            yield (ConflictKey("logit_softcap", "an adaptive softmax never has all logits at once: leave it out"),
                   ConflictKey("cutoffs", "do not combine with network.embedding.logit_softcap"))


class NormSettings(Settings):
    structural_keys = ("kind", "placement")

    kind: Annotated[str, KindName("norm")]  # layer: LayerNorm; rms: RMSNorm, which T5 calls scale
    placement: Literal["post", "pre"]
    epsilon: Positive
    weight: bool = True  # a learned scale
    bias: bool = True  # a learned bias; RMSNorm has none
    first: bool = True  # false, with placement = pre: no norm before the first attention; the embedding has one

    def conflicts(self) -> Iterator[Conflict]:
        if registry.get("norm", self.kind).settings.has_bias and self.bias and not self.weight:
            yield (ConflictKey("weight", "a norm without weights has no bias either: set network.norm.bias=false too"),
                   ConflictKey("bias", "needs network.norm.weight=true"))
        if not self.first and self.placement == "post":
            yield (ConflictKey("first", "is about norms before each sublayer: set network.norm.placement=pre"),
                   ConflictKey("placement", "with post, network.norm.first=false has no meaning"))


Offsets = Annotated[list[int], constraint(
    lambda offsets: len(offsets) > 0 and all(-8 <= offset <= 8 for offset in offsets),
    "must be a list of offsets between -8 and 8, such as [-1, 1]")]


class InitializationSettings(Settings):
    size_keys = ("std",)
    adjustable_keys = ("distribution",)  # concerns only weights that are new

    std: Positive | None = None  # standard deviation, before truncation; None = 1 / sqrt(width)
    # truncated_normal: truncated at two standard deviations, as in BERT's code
    distribution: Literal["truncated_normal", "normal"] = "truncated_normal"
    residual: bool = False  # scale output projections by 1 / sqrt(number of residual additions) (GPT-2)
    zero_output: bool = False  # initialize output projections, and the output matrix of an untied LM head, with zeros:
    #                            every block starts as the identity
    fan_in: bool = False  # standard deviation of each matrix: 1 / sqrt(input width) (T5)
    small: bool | None = None  # std sqrt(2 / (5 x width)), smaller than 1 / sqrt(width) (arXiv:1910.05895)
    # Feed-forward matrices of layer n, from 1, start smaller by 1 / sqrt(2 n) (LTG-BERT).
    feedforward_by_depth: bool | None = None
    embedding_std: Positive | None = None  # standard deviation of the embedding; None = `std`
    # With learned positions: heads of the first layer begin by attending to these offsets, in turn; a decoder uses the
    # negative ones (network/head_offsets.py). None: at random
    head_offsets: Offsets | None = None

    def conflicts(self) -> Iterator[Conflict]:
        if self.small and self.std is not None:
            yield (ConflictKey("small", "states the standard deviation: leave network.initialization.std out"),
                   ConflictKey("std", "excludes network.initialization.small"))
        if self.residual and self.zero_output:
            yield (ConflictKey("zero_output", "leaves nothing to scale: set network.initialization.residual=false"),
                   ConflictKey("residual", "has no effect with network.initialization.zero_output"))

    def std_for(self, width: int) -> float:
        return self.std if self.std is not None else (0.4 / width)**0.5 if self.small else width**-0.5


MemoryLength = Annotated[int, constraint(
    lambda n: n >= 1, "must be 1 or more; remove=network.memory makes segments independent")]


class MemorySettings(Settings):
    """Cached hidden states of earlier segments, without gradient (Transformer-XL)."""

    size_keys = ("length", "eval_length")

    length: MemoryLength  # positions during training
    eval_length: MemoryLength | None = None  # positions during evaluation; None = as in training
    start: Literal["empty", "zeros"] = "empty"  # content before the first segment
    same_length: bool = False  # every query attends to at most `length` positions, itself included


class DecoderSettings(Settings):
    """The decoder of an encoder-decoder. It attends to the encoder's output and shares the token embedding."""

    size_keys = ("layers",)
    structural_keys = ("own_embedding",)

    layers: Depth
    own_embedding: bool | None = None  # a token embedding of its own, which a tied output layer shares; None = no
    depth: Annotated[BodySettings | None, KindField("body", optional=True)] = None  # its body; None = network.depth


class HeadSettings(Settings):
    """The dense layer of the language-modeling head, where it differs from the network's layers."""

    size_keys = ("dropout",)
    adjustable_keys = ("dropout",)

    activation: Activation | None = None  # None = network.activation
    bias: bool | None = None  # None = network.bias
    dropout: BelowOne = 0.0  # after the activation
    dropout_position: Literal["before_norm", "after_norm"] = "before_norm"


class GeneratorSettings(Settings):
    """A smaller masked LM that fills in the masks for the discriminator (ELECTRA). They share the token embedding."""

    size_keys = ("multiplier",)

    # Of width, heads and feed-forward width.
    multiplier: Annotated[float, constraint(lambda x: 0 < x <= 1, "must be greater than 0 and at most 1")]
    layers: Depth | None = None  # None = as many as the network
