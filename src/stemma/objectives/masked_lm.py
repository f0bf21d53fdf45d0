"""Masked language modelling: hide some units, guess them from both sides (BERT, arXiv:1810.04805), or from whatever
side the network may see just then (UniLM, arXiv:1905.03197)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import numpy as np

from stemma.objectives.base import VOCABULARY, Needs, Objective, Scored
from stemma.objectives.masking import (
    apart,
    choose_tokens,
    choose_units,
    geometric,
    joined,
    replaced,
    second_text,
    singles,
)
from stemma.registry import register
from stemma.schema import base
from stemma.schema.base import Blame, Conflict, Count, Probability, Share
from stemma.schema.corpus import packings, two_texts
from stemma.schema.task import ObjectiveSettings, Writing

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.corpus.randomness import Randomness
    from stemma.network.network import Network
    from stemma.network.streams import Hidden
    from stemma.objectives.batch import Batch

HEAD = VOCABULARY
SIDES = {"phrase": "phrases", "entity": "entities"}  # the side array that marks such units
PAIRS_RATE = 0.7  # of UniLM's fine-tuning on pairs, as its released commands have it
Ngrams = Annotated[list[Probability], base.limit(lambda shares: abs(sum(shares) - 1) < 1e-6, "must add up to 1: the "
                                                 "chances that a unit is 1, 2, 3... tokens long")]
Unit = Literal["token", "word", "ngram", "word_ngram", "span", "phrase", "entity"]


class MaskedLMSettings(ObjectiveSettings):
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
    masks_tokens = True
    size_keys = ("rate",)  # ELECTRA's largest hides more: a better generator leaves fewer of them wrong
    one_decision = (("unit", "ngrams", "geometric", "longest", "together"), ("dynamic", "duplicates"),
                    ("mask", "random"))

    @property
    def needs_packing(self) -> tuple[str, ...]:
        """Masked copies are kept row by row, so their rows must not hang together; nor may they where the rule of
        sight knows nothing of a memory."""
        if self.sees == "prefix" or self.scored == "second":
            return two_texts()
        return () if self.dynamic and self.sees == "full" else packings(contiguous=False)

    @property
    def writing(self) -> Writing | None:
        """A mask behind the text asks what stands there, if the text before it did not see it while it was learned."""
        return Writing("cloze", paired=self.sees == "prefix") if self.sees in ("prefix", "causal") else None

    @property
    def guesses_from_both_sides(self) -> bool:
        return self.sees == "full"

    @property
    def for_pairs(self) -> dict[str, Any] | None:
        """UniLM's way. Who has learned to guess from both sides learns it from the pairs themselves."""
        keys = {"scored": "second", "rate": PAIRS_RATE}
        if self.sees == "full":
            return {**keys, "sees": "prefix", "unit": "token", "together": False, "dynamic": True}
        return keys if self.sees == "prefix" else None

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.mask + self.random > 1:
            what = f"mask {self.mask:g} and random {self.random:g} add up to more than 1"
            yield (Blame("mask", what), Blame("random", what))
        if self.scored == "second" and self.sees == "later":
            yield (Blame("scored", "with sees=later A is never seen from B, so B cannot be guessed from it"),
                   Blame("sees", "with scored=second B must see A: full, prefix or causal"))


@register("objective", "masked_lm", MaskedLMSettings)
class MaskedLM(Objective):
    settings: MaskedLMSettings
    guesses_tokens = True

    @property
    def copies(self) -> int | None:
        return None if self.settings.dynamic else self.settings.duplicates

    def needs(self) -> Needs:
        from stemma.network.heads import TokenHead

        marked = SIDES.get(self.settings.unit)
        return Needs(roles=frozenset({"mask"}), fields=frozenset({marked} if marked else ()),
                     heads={HEAD: TokenHead(transform=True)})

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        settings = self.settings
        among = second_text(draft) if settings.scored == "second" else None
        if settings.unit == "token":
            chosen = choose_tokens(draft, settings.rate, rng, among)
        else:
            chosen = self._choose_units(draft, among, rng)
        if settings.sees == "prefix":
            draft.prefix = draft.second()
        draft.score(HEAD, at=chosen, labels=draft.original)
        draft.ids = replaced(draft, chosen, settings.mask, settings.random, rng,
                             draft.parted if settings.together else None)

    def _choose_units(self, draft: Draft, among: np.ndarray | None, rng: Randomness) -> np.ndarray:
        """(rows, length) bool: units that are hidden whole or not at all; the draft keeps their numbers."""
        settings, unit = self.settings, self.settings.unit
        if unit == "ngram":
            units = singles(draft.text)
        else:
            units = draft.units(SIDES[unit]) if unit in SIDES else draft.words
        units = units if among is None else apart(units, among)
        draft.parted = units
        if unit == "span":
            draft.parted = joined(units, geometric(settings.geometric, settings.longest), rng)
            return choose_units(units, settings.rate, rng, within=draft.parted)
        if unit in ("ngram", "word_ngram"):
            draft.parted = joined(units, settings.ngrams, rng)
        return choose_units(draft.parted, settings.rate, rng)

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor] | Scored:
        target = batch.scores[HEAD]
        places = hidden["encoder"].flatten(0, 1)[target.index]  # (N, width): unscored places go no further
        head = network.reader.head(HEAD)
        if network.reader is network:
            return {self.name: head.loss(places, target.labels, target.total)}
        import torch

        from stemma.network.heads import TokenScorer

        # a generator has read, and what it would write is left for another task to judge (ELECTRA)
        guess = cast(TokenScorer, head).guess(places, target.labels, target.total)
        accuracy = guess.right.sum(), torch.tensor(len(places))
        return Scored({self.name: guess.loss}, {"generator_accuracy": accuracy}, guess.sampled)

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: float(-unigram[batch.scores[HEAD].labels.cpu().numpy()].mean())}
