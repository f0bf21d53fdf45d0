"""What a network is trained to do. The classes say as plain data what each task needs of the text and the tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from stemma.schema import base
from stemma.schema.base import BY_KIND, BelowOne, Blame, Conflict, Count, Probability, Share
from stemma.schema.corpus import RUNNING_TEXT, SHUFFLED_PACKINGS, TWO_TEXTS, Packing
from stemma.schema.encoder_tasks import ENCODER_TASKS, MaskedLMSettings, NextSentenceSettings
from stemma.schema.task import BaseObjective, Part, Sees

__all__ = ["OBJECTIVE_KINDS", "BaseObjective", "MaskedLMSettings", "NextSentenceSettings", "ObjectiveSettings", "Sees"]

Context = Annotated[int, base.limit(lambda k: k >= 2, "must be 2 or more: with 1 every token is guessed and none is "
                                                      "left to guess it from")]
MeanSpan = Annotated[float, base.limit(lambda x: x >= 1, "must be 1 or more: a span hides at least one token")]


class CausalLMSettings(BaseObjective):
    kind: Literal["causal_lm"]
    direction: Literal["forward", "backward"] = "forward"  # backward reads every text from its end
    scored: Literal["all", "second"] = "all"  # second: A of a pair is given, and only B is guessed
    transform: bool = False  # a layer and a norm before the scores, and a bias, as masked models have (Ettin)

    roles = frozenset({"end"})  # parts documents; a vocabulary without one (openai-gpt's) still serves
    sees: ClassVar[Sees] = "causal"

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        return () if self.scored == "all" else TWO_TEXTS

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.scored == "second" and self.direction == "backward":
            yield (Blame("scored", "with direction=backward B is read first, so it cannot be guessed from A"),
                   Blame("direction", "with scored=second A must be read first"))


class PrefixLMSettings(BaseObjective):
    """The next token after a prefix that sees itself in full; the prefix ends where B begins, or at random."""

    kind: Literal["prefix_lm"]

    roles = frozenset({"end"})
    sees: ClassVar[Sees] = "prefix"

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        return SHUFFLED_PACKINGS


class PermutationLMSettings(BaseObjective):
    kind: Literal["permutation_lm"]
    context: Context = 6  # the paper's K: one token in so many is guessed
    longest_span: Count = 5  # targets come in spans of up to so many units
    unit: Literal["token", "word"] = "word"
    both_directions: bool = True  # half of the rows are read from their end

    sees: ClassVar[Sees] = "permuted"
    needs_query = True


class DecoderObjective(BaseObjective):
    """The encoder reads a source, and the decoder writes a target token by token."""

    smoothing: BelowOne = 0.0  # share of certainty that is spread over all tokens alike

    sees: ClassVar[Sees] = "full"  # of the encoder
    needs_decoder = True

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        return RUNNING_TEXT


class TranslationSettings(DecoderObjective):
    kind: Literal["translation"]
    smoothing: BelowOne = 0.1

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        return ("parallel",)


class SpanToSpanSettings(DecoderObjective):
    """MASS: hide one span, and write it."""

    kind: Literal["masked_span_to_span"]
    share: Part = 0.5  # of the text: a single token makes it BERT's task, all of it GPT's
    mask: Probability = 0.8  # of the hidden: replaced by the mask token
    random: Probability = 0.1  # of the hidden: replaced by another token; the rest stays as it was

    roles = frozenset({"mask"})

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.mask + self.random > 1:
            what = f"mask {self.mask:g} and random {self.random:g} add up to more than 1"
            yield (Blame("mask", what), Blame("random", what))


class DenoiseSettings(DecoderObjective):
    """BART: spoil a text in one or several ways, in this order, and write the original."""

    kind: Literal["denoise"]
    permute: Probability = 1.0  # how often the sentences of a row are shuffled
    infill: BelowOne = 0.3  # share of the tokens that stand in spans, each replaced by one mask token
    mean_span: MeanSpan = 3.0  # their lengths are Poisson's; a span of none is a mask put in between
    mask: BelowOne = 0.0  # share of the tokens replaced by a mask token each
    delete: BelowOne = 0.0  # share of the tokens that are left out
    rotate: Probability = 0.0  # how often a row begins at any of its tokens

    roles = frozenset({"mask"})

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        names = ("infill", "mask", "delete")
        if sum(getattr(self, name) for name in names) >= 1:
            what = f"infill {self.infill:g}, mask {self.mask:g} and delete {self.delete:g} leave nothing of the text"
            yield tuple(Blame(name, what) for name in names)
        if not any(getattr(self, name) for name in (*names, "permute", "rotate")):
            what = "nothing is spoilt, so there is nothing to learn: set one of infill, mask, delete, permute, rotate"
            yield tuple(Blame(name, what) for name in (*names, "permute", "rotate"))


class SpanCorruptionSettings(DecoderObjective):
    """T5: every hidden span becomes one sentinel, and the target says what each sentinel stands for."""

    kind: Literal["span_corruption"]
    rate: Share = 0.15  # share of the tokens that are hidden
    mean_span: MeanSpan = 3.0

    roles = frozenset({"sentinel", "end"})


ObjectiveSettings = Annotated[
    ENCODER_TASKS | CausalLMSettings | PrefixLMSettings | PermutationLMSettings | TranslationSettings
    | SpanToSpanSettings | DenoiseSettings | SpanCorruptionSettings, BY_KIND]
OBJECTIVE_KINDS: dict[str, type[BaseObjective]] = base.kinds(ObjectiveSettings)
