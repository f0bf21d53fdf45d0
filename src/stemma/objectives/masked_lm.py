"""Masked language modelling: hide some units, guess them from both sides (BERT, arXiv:1810.04805), or from whatever
side the network may see just then (UniLM, arXiv:1905.03197)."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor

from stemma.corpus.draft import Draft
from stemma.corpus.randomness import Randomness
from stemma.network.heads import TokenHead, TokenScorer
from stemma.network.network import Network
from stemma.network.streams import Hidden
from stemma.objectives.base import Needs, Objective, Scored
from stemma.objectives.batch import Batch
from stemma.objectives.masking import apart, choose_tokens, choose_units, geometric, joined, replaced, singles
from stemma.schema.objective import MaskedLMSettings

HEAD = "vocabulary"
SIDES = {"phrase": "phrases", "entity": "entities"}  # the side array that marks such units


class MaskedLM(Objective):
    settings: MaskedLMSettings
    guesses_tokens = True

    @property
    def copies(self) -> int | None:
        return None if self.settings.dynamic else self.settings.duplicates

    def needs(self) -> Needs:
        marked = SIDES.get(self.settings.unit)
        return Needs(roles=frozenset({"mask"}), fields=frozenset({marked} if marked else ()),
                     heads={HEAD: TokenHead(transform=True)})

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        settings = self.settings
        among = _second(draft) if settings.scored == "second" else None
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
        # a generator has read, and what it would write is left for another task to judge (ELECTRA)
        guess = cast(TokenScorer, head).guess(places, target.labels, target.total)
        accuracy = guess.right.sum(), torch.tensor(len(places))
        return Scored({self.name: guess.loss}, {"generator_accuracy": accuracy}, guess.sampled)

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: float(-unigram[batch.scores[HEAD].labels.cpu().numpy()].mean())}


def _second(draft: Draft) -> np.ndarray:
    """(rows, length) bool: B, and the token that ends it, so that a network which writes by filling in masks learns to
    stop (arXiv:1905.03197, section 2.4)."""
    place, begins = np.arange(draft.text.shape[1]), draft.second()[:, None]
    stops = begins + draft.pieces.part_lengths(1)[:, None]
    return (place >= begins) & (place <= stops) & (place < draft.lengths[:, None])
