"""What a network is trained to do. The classes say as plain data what each task needs of the text and the tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from stemma.schema import base
from stemma.schema.base import (
    BY_KIND,
    BelowOne,
    Blame,
    Conflict,
    Count,
    Natural,
    Positive,
    Probability,
    Settings,
    Share,
)
from stemma.schema.corpus import RUNNING_TEXT, SHUFFLED_PACKINGS, TWO_TEXTS, Packing, PairTemplate, SingleTemplate

Sees = Literal["full", "causal", "permuted", "prefix", "later"]
Context = Annotated[int, base.limit(lambda k: k >= 2, "must be 2 or more: with 1 every token is guessed and none is "
                                                      "left to guess it from")]
Part = Annotated[float, base.limit(lambda x: 0 < x <= 1, "must be greater than 0 and at most 1")]
MeanSpan = Annotated[float, base.limit(lambda x: x >= 1, "must be 1 or more: a span hides at least one token")]
Ngrams = Annotated[list[Probability], base.limit(lambda shares: abs(sum(shares) - 1) < 1e-6, "must add up to 1: the "
                                                 "chances that a unit is 1, 2, 3... tokens long")]


class BaseObjective(Settings):
    """Each task also says what it `sees` while it is learned: a constant of its class, or a key."""

    kind: str
    weight: Positive = 1.0  # of its loss
    turns: Positive = 1.0  # how often it takes its turn beside tasks that need a batch of their own
    packing: Packing | None = None  # None = the corpus's, as with the two templates
    single: SingleTemplate | None = None
    pair: PairTemplate | None = None
    start_step: Natural = 0  # a curriculum: the task joins at this step (ERNIE 2.0)
    task_id: Natural | None = None

    roles: ClassVar[frozenset[str]] = frozenset()  # special tokens the task writes itself
    rearranges: ClassVar[bool] = False  # moves text about, so it must act before tokens are hidden
    needs_query: ClassVar[bool] = False  # guesses through a second stream, which does not see its own token
    needs_decoder: ClassVar[bool] = False  # reads one text with the encoder and writes another with the decoder

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        """The packings that the task can work with; empty = any."""
        return ()


class MaskedLMSettings(BaseObjective):
    kind: Literal["masked_lm"]
    rate: Share  # share of the tokens that are guessed
    unit: Literal["token", "word", "ngram"]
    ngrams: Ngrams = [0.8, 0.1, 0.1]  # where unit is ngram: how often a unit is 1, 2, 3... tokens (UniLM)
    sees: Literal["full", "prefix", "causal", "later"] = "full"  # prefix: B from A and what is before; later: mirrored
    scored: Literal["all", "second"] = "all"  # second: A of a pair is given, and only B is hidden
    dynamic: bool  # new masks each time; otherwise `duplicates` masked copies take turns
    duplicates: Count = 10
    mask: Probability = 0.8  # of the chosen: replaced by the mask token
    random: Probability = 0.1  # of the chosen: replaced by another token; the rest stays as it was

    roles = frozenset({"mask"})

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        """Masked copies are kept row by row, so their rows must not hang together; nor may they where the rule of
        sight knows nothing of a memory."""
        if self.sees == "prefix" or self.scored == "second":
            return TWO_TEXTS
        return () if self.dynamic and self.sees == "full" else SHUFFLED_PACKINGS

    def conflicts(self) -> Iterator[Conflict]:
        if self.mask + self.random > 1:
            what = f"mask {self.mask:g} and random {self.random:g} add up to more than 1"
            yield (Blame("mask", what), Blame("random", what))
        if self.scored == "second" and self.sees == "later":
            yield (Blame("scored", "with sees=later A is never seen from B, so B cannot be guessed from it"),
                   Blame("sees", "with scored=second B must see A: full, prefix or causal"))


class NextSentenceSettings(BaseObjective):
    kind: Literal["next_sentence"]
    random: Probability = 0.5  # how often B comes from another document

    rearranges = True
    sees: ClassVar[Sees] = "full"

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        return ("segment_pair", "sentence_pair")


class CausalLMSettings(BaseObjective):
    kind: Literal["causal_lm"]
    direction: Literal["forward", "backward"] = "forward"  # backward reads every text from its end
    scored: Literal["all", "second"] = "all"  # second: A of a pair is given, and only B is guessed

    roles = frozenset({"end"})  # parts documents; a vocabulary without one (openai-gpt's) still serves
    sees: ClassVar[Sees] = "causal"

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        return () if self.scored == "all" else TWO_TEXTS

    def conflicts(self) -> Iterator[Conflict]:
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
    MaskedLMSettings | NextSentenceSettings | CausalLMSettings | PrefixLMSettings | PermutationLMSettings
    | TranslationSettings | SpanToSpanSettings | DenoiseSettings | SpanCorruptionSettings, BY_KIND]
OBJECTIVE_KINDS: dict[str, type[BaseObjective]] = base.kinds(ObjectiveSettings)
