"""What a network is trained to do. The classes say as plain data what each task needs of the text and the tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from stemma.schema import base
from stemma.schema.base import BY_KIND, Blame, Conflict, Count, Natural, Positive, Probability, Settings, Share
from stemma.schema.corpus import SHUFFLED_PACKINGS, Packing

Sees = Literal["full", "causal", "permuted"]
Context = Annotated[int, base.limit(lambda k: k >= 2, "must be 2 or more: with 1 every token is guessed and none is "
                                                      "left to guess it from")]


class BaseObjective(Settings):
    kind: str
    weight: Positive = 1.0
    packing: Packing | None = None  # None = the corpus's
    start_step: Natural = 0  # a curriculum: the task joins at this step (ERNIE 2.0)
    task_id: Natural | None = None

    roles: ClassVar[frozenset[str]] = frozenset()  # special tokens the task writes itself
    rearranges: ClassVar[bool] = False  # moves text about, so it must act before tokens are hidden
    sees: ClassVar[Sees] = "full"  # who sees whom while this task is learned
    needs_query: ClassVar[bool] = False  # guesses through a second stream, which does not see its own token

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        """The packings that the task can work with; empty = any."""
        return ()


class MaskedLMSettings(BaseObjective):
    kind: Literal["masked_lm"]
    rate: Share  # share of the tokens that are guessed
    unit: Literal["token", "word"]
    dynamic: bool  # new masks each time; otherwise `duplicates` masked copies take turns
    duplicates: Count = 10
    mask: Probability = 0.8  # of the chosen: replaced by the mask token
    random: Probability = 0.1  # of the chosen: replaced by another token; the rest stays as it was

    roles = frozenset({"mask"})

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        """Masked copies are kept row by row, so their rows must not hang together."""
        return () if self.dynamic else SHUFFLED_PACKINGS

    def conflicts(self) -> Iterator[Conflict]:
        if self.mask + self.random > 1:
            what = f"mask {self.mask:g} and random {self.random:g} add up to more than 1"
            yield (Blame("mask", what), Blame("random", what))


class NextSentenceSettings(BaseObjective):
    kind: Literal["next_sentence"]
    random: Probability = 0.5  # how often B comes from another document

    rearranges = True

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        return ("segment_pair", "sentence_pair")


class CausalLMSettings(BaseObjective):
    kind: Literal["causal_lm"]
    direction: Literal["forward", "backward"] = "forward"  # backward reads every text from its end
    scored: Literal["all", "second"] = "all"  # second: A of a pair is given, and only B is guessed

    roles = frozenset({"end"})  # parts documents; a vocabulary without one (openai-gpt's) still serves
    sees = "causal"

    @property
    def needs_packing(self) -> tuple[Packing, ...]:
        return () if self.scored == "all" else ("segment_pair", "sentence_pair")

    def conflicts(self) -> Iterator[Conflict]:
        if self.scored == "second" and self.direction == "backward":
            yield (Blame("scored", "with direction=backward B is read first, so it cannot be guessed from A"),
                   Blame("direction", "with scored=second A must be read first"))


class PermutationLMSettings(BaseObjective):
    kind: Literal["permutation_lm"]
    context: Context = 6  # the paper's K: one token in so many is guessed
    longest_span: Count = 5  # targets come in spans of up to so many units
    unit: Literal["token", "word"] = "word"
    both_directions: bool = True  # half of the rows are read from their end

    sees = "permuted"
    needs_query = True


ObjectiveSettings = Annotated[MaskedLMSettings | NextSentenceSettings | CausalLMSettings | PermutationLMSettings,
                              BY_KIND]
OBJECTIVE_KINDS: dict[str, type[BaseObjective]] = base.kinds(ObjectiveSettings)
