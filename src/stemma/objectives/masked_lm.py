"""Masked language modelling: hide some units, guess them from both sides (BERT, arXiv:1810.04805), or from whatever
side the network may see just then (UniLM, arXiv:1905.03197)."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from stemma.corpus.draft import Draft
from stemma.corpus.randomness import Randomness
from stemma.network.heads import TokenHead
from stemma.network.network import Network
from stemma.network.streams import Hidden
from stemma.objectives.base import Needs, Objective
from stemma.objectives.batch import Batch
from stemma.objectives.masking import choose_ngrams, choose_tokens, choose_words, replaced
from stemma.schema.objective import MaskedLMSettings

HEAD = "vocabulary"
UNITS = {"token": choose_tokens, "word": choose_words}


class MaskedLM(Objective):
    settings: MaskedLMSettings
    guesses_tokens = True

    @property
    def copies(self) -> int | None:
        return None if self.settings.dynamic else self.settings.duplicates

    def needs(self) -> Needs:
        return Needs(roles=frozenset({"mask"}), heads={HEAD: TokenHead(transform=True)})

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        settings = self.settings
        among = _second(draft) if settings.scored == "second" else None
        if settings.unit == "ngram":
            chosen = choose_ngrams(draft, settings.rate, rng, settings.ngrams, among)
        else:
            chosen = UNITS[settings.unit](draft, settings.rate, rng, among)
        if settings.sees == "prefix":
            draft.prefix = draft.second()
        draft.score(HEAD, at=chosen, labels=draft.original)
        draft.ids = replaced(draft, chosen, settings.mask, settings.random, rng)

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        target = batch.scores[HEAD]
        places = hidden["encoder"].flatten(0, 1)[target.index]  # (N, width): unscored places go no further
        return {self.name: network.head(HEAD).loss(places, target.labels, target.total)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: float(-unigram[batch.scores[HEAD].labels.cpu().numpy()].mean())}


def _second(draft: Draft) -> np.ndarray:
    """(rows, length) bool: B, and the token that ends it, so that a network which writes by filling in masks learns to
    stop (arXiv:1905.03197, section 2.4)."""
    place, begins = np.arange(draft.text.shape[1]), draft.second()[:, None]
    stops = begins + draft.pieces.part_lengths(1)[:, None]
    return (place >= begins) & (place <= stops) & (place < draft.lengths[:, None])
