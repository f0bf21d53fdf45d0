"""Masked language modelling: hide some units, guess them from both sides (BERT, arXiv:1810.04805), or from whatever
side the network may see just then (UniLM, arXiv:1905.03197)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import numpy as np

from stemma.objectives.base import LM_HEAD, LossOutput, Objective, Requirements
from stemma.objectives.masking import (
    choose_tokens,
    choose_units,
    merge_adjacent_units,
    replace_tokens,
    restrict_units,
    segment_b_mask,
    token_units,
    truncated_geometric,
)
from stemma.registry import register
from stemma.schema import base
from stemma.schema.base import Conflict, ConflictKey, Count, OpenFraction, Probability
from stemma.schema.corpus import packing_names, pair_packings
from stemma.schema.objective import GenerationCapability, ObjectiveSettings

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG
    from stemma.network.inputs_outputs import NetworkOutput
    from stemma.network.network import Network
    from stemma.objectives.batch import Batch

LM_HEAD_NAME = LM_HEAD
UNIT_ANNOTATIONS = {"phrase": "phrases", "entity": "entities"}  # the side array that marks such units
PAIR_MASK_RATE = 0.7  # of UniLM's fine-tuning on pairs, as its released commands have it
NgramProbabilities = Annotated[list[Probability], base.constraint(lambda shares: abs(sum(shares) - 1) < 1e-6,
                                                                  "must add up to 1: the "
                                                 "chances that a unit is 1, 2, 3... tokens long")]
Unit = Literal["token", "word", "ngram", "word_ngram", "span", "phrase", "entity"]


class MaskedLMSettings(ObjectiveSettings):
    kind: Literal["masked_lm"]
    rate: OpenFraction  # share of the tokens that are guessed
    unit: Unit  # what is hidden whole or not at all
    ngrams: NgramProbabilities = [0.8, 0.1, 0.1]  # chances of 1, 2, 3... tokens (unit ngram: UniLM) or words
    #                                               (word_ngram: ALBERT)
    geometric: OpenFraction = 0.2  # where unit is span: the chance that a span of words ends after each (SpanBERT)
    longest: Count = 10  # where unit is span: its most words
    together: bool = False  # all tokens of a unit are masked, replaced or kept alike
    sees: Literal["full", "prefix", "causal", "later"] = "full"  # prefix: B from A and what is before; later: mirrored
    scored: Literal["all", "second"] = "all"  # second: A of a pair is given, and only B is hidden
    dynamic: bool  # new masks each time; otherwise `duplicates` masked copies take turns
    duplicates: Count = 10
    mask: Probability = 0.8  # of the chosen: replaced by the mask token
    random: Probability = 0.1  # of the chosen: replaced by another token; the rest stays as it was

    special_tokens = frozenset({"mask"})
    masks_tokens = True
    size_keys = ("rate",)  # ELECTRA's largest hides more: a better generator leaves fewer of them wrong
    one_decision = (("unit", "ngrams", "geometric", "longest", "together"), ("dynamic", "duplicates"),
                    ("mask", "random"))

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        """Masked copies are kept row by row, so their rows must not hang together; nor may they where the rule of
        sight knows nothing of a memory."""
        if self.sees == "prefix" or self.scored == "second":
            return pair_packings()
        return () if self.dynamic and self.sees == "full" else packing_names(contiguous=False)

    @property
    def generation(self) -> GenerationCapability | None:
        """A mask behind the text asks what stands there, if the text before it did not see it while it was learned."""
        return GenerationCapability("cloze", paired=self.sees == "prefix") if self.sees in ("prefix",
                                                                                            "causal") else None

    @property
    def predicts_bidirectionally(self) -> bool:
        return self.sees == "full"

    @property
    def pair_finetuning_keys(self) -> dict[str, Any] | None:
        """UniLM's way. Who has learned to guess from both sides learns it from the pairs themselves."""
        keys = {"scored": "second", "rate": PAIR_MASK_RATE}
        if self.sees == "full":
            return {**keys, "sees": "prefix", "unit": "token", "together": False, "dynamic": True}
        return keys if self.sees == "prefix" else None

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.mask + self.random > 1:
            what = f"mask {self.mask:g} and random {self.random:g} add up to more than 1"
            yield (ConflictKey("mask", what), ConflictKey("random", what))
        if self.scored == "second" and self.sees == "later":
            yield (ConflictKey("scored", "with sees=later A is never seen from B, so B cannot be guessed from it"),
                   ConflictKey("sees", "with scored=second B must see A: full, prefix or causal"))


@register("objective", "masked_lm", MaskedLMSettings)
class MaskedLM(Objective):
    settings: MaskedLMSettings
    predicts_tokens = True

    @property
    def num_static_copies(self) -> int | None:
        return None if self.settings.dynamic else self.settings.duplicates

    def requirements(self) -> Requirements:
        from stemma.network.heads import LMHeadSpec

        marked = UNIT_ANNOTATIONS.get(self.settings.unit)
        return Requirements(special_tokens=frozenset({"mask"}), annotations=frozenset({marked} if marked else ()),
                     heads={LM_HEAD_NAME: LMHeadSpec(transform=True)})

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        settings = self.settings
        among = segment_b_mask(draft) if settings.scored == "second" else None
        if settings.unit == "token":
            chosen = choose_tokens(draft, settings.rate, rng, among)
        else:
            chosen = self._choose_units(draft, among, rng)
        if settings.sees == "prefix":
            draft.prefix_lengths = draft.segment_b_start()
        draft.add_token_targets(LM_HEAD_NAME, at=chosen, labels=draft.original_ids)
        draft.input_ids = replace_tokens(draft, chosen, settings.mask, settings.random, rng,
                             draft.unit_ids if settings.together else None)

    def _choose_units(self, draft: Draft, among: np.ndarray | None, rng: RNG) -> np.ndarray:
        """(rows, length) bool: units that are hidden whole or not at all; the draft keeps their numbers."""
        settings, unit = self.settings, self.settings.unit
        if unit == "ngram":
            units = token_units(draft.is_text)
        else:
            units = draft.annotated_unit_ids(UNIT_ANNOTATIONS[unit]) if unit in UNIT_ANNOTATIONS else draft.word_ids
        units = units if among is None else restrict_units(units, among)
        draft.unit_ids = units
        if unit == "span":
            draft.unit_ids = merge_adjacent_units(units, truncated_geometric(settings.geometric, settings.longest), rng)
            return choose_units(units, settings.rate, rng, within=draft.unit_ids)
        if unit in ("ngram", "word_ngram"):
            draft.unit_ids = merge_adjacent_units(units, settings.ngrams, rng)
        return choose_units(draft.unit_ids, settings.rate, rng)

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor] | LossOutput:
        target = batch.token_targets[LM_HEAD_NAME]
        places = output["encoder"].flatten(0, 1)[target.index]  # (N, width): unscored places go no further
        head = network.input_network.head(LM_HEAD_NAME)
        if network.input_network is network:
            return {self.name: head.loss(places, target.labels, target.denominator)}
        import torch

        from stemma.network.heads import LMHead

        # a generator has read, and what it would write is left for another task to judge (ELECTRA)
        guess = cast(LMHead, head).loss_and_sample(places, target.labels, target.denominator)
        accuracy = guess.correct.sum(), torch.tensor(len(places))
        return LossOutput({self.name: guess.loss}, {"generator_accuracy": accuracy}, guess.sampled)

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: float(-unigram[batch.token_targets[LM_HEAD_NAME].labels.cpu().numpy()].mean())}
