"""What a network is trained to do. The classes say as plain data what each task needs of the text and the tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from stemma.schema.base import BY_KIND, Blame, Conflict, Count, Natural, Positive, Probability, Settings, Share, kinds
from stemma.schema.corpus import PAIR_PACKINGS, Packing


class BaseObjective(Settings):
    kind: str
    weight: Positive = 1.0
    packing: Packing | None = None  # None = the corpus's
    start_step: Natural = 0  # a curriculum: the task joins at this step (ERNIE 2.0)
    task_id: Natural | None = None

    roles: ClassVar[frozenset[str]] = frozenset()  # special tokens the task writes itself
    needs_packing: ClassVar[tuple[Packing, ...]] = ()  # empty = any
    rearranges: ClassVar[bool] = False  # moves text about, so it must act before tokens are hidden


class MaskedLMSettings(BaseObjective):
    kind: Literal["masked_lm"]
    rate: Share  # share of the tokens that are guessed
    unit: Literal["token", "word"]
    dynamic: bool  # new masks each time; otherwise `duplicates` masked copies take turns
    duplicates: Count = 10
    mask: Probability = 0.8  # of the chosen: replaced by the mask token
    random: Probability = 0.1  # of the chosen: replaced by another token; the rest stays as it was

    roles = frozenset({"mask"})

    def conflicts(self) -> Iterator[Conflict]:
        if self.mask + self.random > 1:
            what = f"mask {self.mask:g} and random {self.random:g} add up to more than 1"
            yield (Blame("mask", what), Blame("random", what))


class NextSentenceSettings(BaseObjective):
    kind: Literal["next_sentence"]
    random: Probability = 0.5  # how often B comes from another document

    needs_packing = PAIR_PACKINGS
    rearranges = True


ObjectiveSettings = Annotated[MaskedLMSettings | NextSentenceSettings, BY_KIND]
OBJECTIVE_KINDS: dict[str, type[BaseObjective]] = kinds(ObjectiveSettings)
