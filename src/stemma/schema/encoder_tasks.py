"""Tasks of an encoder that reads both sides: hidden tokens, and questions about words, sentences and documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from stemma.schema import base
from stemma.schema.base import Blame, Conflict, Count, Probability, Share
from stemma.schema.corpus import SHUFFLED_PACKINGS, TWO_TEXTS, Packing
from stemma.schema.task import BaseObjective, Sees

Ngrams = Annotated[list[Probability], base.limit(lambda shares: abs(sum(shares) - 1) < 1e-6, "must add up to 1: the "
                                                 "chances that a unit is 1, 2, 3... tokens long")]
Connectives = Annotated[list[str], base.limit(lambda words: len({word.strip() for word in words} - {""}) == len(words),
                                              "must be words, each of them once")]
Unit = Literal["token", "word", "ngram", "word_ngram", "span", "phrase", "entity"]
PAIRS: tuple[Packing, ...] = ("segment_pair", "sentence_pair")
ONE_DOCUMENT: tuple[Packing, ...] = ("doc_sentences",)


class MaskedLMSettings(BaseObjective):
    kind: Literal["masked_lm"]
    rate: Share  # share of the tokens that are guessed
    unit: Unit  # what is hidden whole or not at all
    ngrams: Ngrams = [0.8, 0.1, 0.1]  # chances of 1, 2, 3... tokens (unit ngram: UniLM) or words (word_ngram: ALBERT)
    geometric: Share = 0.2  # where unit is span: the chance that a span of words ends after each (SpanBERT)
    longest: Count = 10  # where unit is span: its most words
    together: bool = False  # all tokens of a unit are masked, replaced or kept alike
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
        yield from super().conflicts()
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
        return PAIRS


class SpanBoundarySettings(BaseObjective):
    """SpanBERT: guess each token of a hidden span from the two places around the span and its number within it."""

    kind: Literal["span_boundary"]
    places: Count = 15  # how many numbers there are (as released); a longer span's rest shares the last

    sees: ClassVar[Sees] = "full"

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        return SHUFFLED_PACKINGS


class WordStructureSettings(BaseObjective):
    """StructBERT: shuffle some runs of tokens that are not hidden, and put them back."""

    kind: Literal["word_structure"]
    rate: Share = 0.05  # share of the tokens that stand in shuffled runs
    length: Annotated[int, base.limit(lambda n: n >= 2, "must be 2 or more: one token alone has no order")] = 3

    sees: ClassVar[Sees] = "full"


class ReplacedTokenSettings(BaseObjective):
    """ELECTRA: of every token, say whether it is the original or what a small generator put there."""

    kind: Literal["replaced_token"]
    judged: Literal["all", "hidden"] = "all"  # hidden: only where the generator wrote, the paper's "ELECTRA 15%"

    sees: ClassVar[Sees] = "full"
    needs_generator = True


class SentenceOrderSettings(BaseObjective):
    """ALBERT: do A and B stand in their order? StructBERT adds a third answer: B is from another document."""

    kind: Literal["sentence_order"]
    swapped: Probability = 0.5
    other: Probability = 0.0  # 0 = two classes

    rearranges = True
    sees: ClassVar[Sees] = "full"

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        return PAIRS

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.swapped + self.other > 1:
            what = f"swapped {self.swapped:g} and other {self.other:g} add up to more than 1"
            yield (Blame("swapped", what), Blame("other", what))


class SentenceReorderingSettings(BaseObjective):
    """ERNIE 2.0: cut a paragraph into 1 to `parts` parts, shuffle them, and say which shuffle it was."""

    kind: Literal["sentence_reordering"]
    parts: Annotated[int, base.limit(lambda n: 2 <= n <= 6, "must lie between 2 and 6: there are 1! + 2! + ... "
                                                            "classes")] = 3

    rearranges = True
    sees: ClassVar[Sees] = "full"

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        return ONE_DOCUMENT


class SentenceDistanceSettings(BaseObjective):
    """ERNIE 2.0: are A and B neighbours, of one document, or of two?"""

    kind: Literal["sentence_distance"]

    rearranges = True
    sees: ClassVar[Sees] = "full"

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        return PAIRS


class DiscourseRelationSettings(BaseObjective):
    """ERNIE 2.0: B began with a connective, which was taken away; which one was it?"""

    kind: Literal["discourse_relation"]
    connectives: Connectives = []  # empty = the built-in English and Chinese ones

    rearranges = True
    sees: ClassVar[Sees] = "full"

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        return PAIRS


class IRRelevanceSettings(BaseObjective):
    """ERNIE 2.0: how well does a title answer a query: clicked, shown, or neither?"""

    kind: Literal["ir_relevance"]
    classes: Annotated[int, base.limit(lambda n: n >= 2, "must be 2 or more")] = 3

    sees: ClassVar[Sees] = "full"

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        return ("parallel",)


class DialogueLMSettings(BaseObjective):
    """ERNIE 1.0: segments say who speaks; was one of the turns exchanged for another dialogue's?"""

    kind: Literal["dialogue_lm"]
    fake: Probability = 0.5

    rearranges = True
    sees: ClassVar[Sees] = "full"

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        return ("dialogue",)


class CapitalisationSettings(BaseObjective):
    """ERNIE 2.0: was the word written with a capital?"""

    kind: Literal["capitalisation"]

    sees: ClassVar[Sees] = "full"

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        return SHUFFLED_PACKINGS


class TokenDocumentRelationSettings(BaseObjective):
    """ERNIE 2.0: does this token occur elsewhere in the same document?"""

    kind: Literal["token_document_relation"]
    reach: Count = 8192  # tokens of the document, around the row, that are looked through

    sees: ClassVar[Sees] = "full"

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        return ONE_DOCUMENT


ENCODER_TASKS = (
    MaskedLMSettings | NextSentenceSettings | SpanBoundarySettings | WordStructureSettings | ReplacedTokenSettings
    | SentenceOrderSettings | SentenceReorderingSettings | SentenceDistanceSettings | DiscourseRelationSettings
    | IRRelevanceSettings | DialogueLMSettings | CapitalisationSettings | TokenDocumentRelationSettings)
