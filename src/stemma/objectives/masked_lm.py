"""Masked language modelling: hide some units, guess them from both sides (BERT, arXiv:1810.04805)."""

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
from stemma.objectives.masking import choose_tokens, choose_words
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
        chosen = UNITS[self.settings.unit](draft, self.settings.rate, rng)
        draft.score(HEAD, at=chosen, labels=draft.original)
        draft.ids = self.replace(draft, chosen, rng)

    def replace(self, draft: Draft, chosen: np.ndarray, rng: Randomness) -> np.ndarray:
        """80% become [MASK], 10% another token, 10% stay: the network never knows which words it may trust."""
        tokenizer = draft.corpus.tokenizer
        ordinary = tokenizer.ordinary_ids
        action, which = rng.random((draft.rows, 2, draft.ids.shape[1])).transpose(1, 0, 2)
        masked = chosen & (action < self.settings.mask)
        random = chosen & ~masked & (action < self.settings.mask + self.settings.random)
        ids = np.where(masked, tokenizer.role("mask"), draft.ids)
        return np.where(random, ordinary[(which * len(ordinary)).astype(np.int64)], ids).astype(np.int32)

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        target = batch.scores[HEAD]
        places = hidden["encoder"].flatten(0, 1)[target.index]  # (N, width): unscored places go no further
        return {self.name: network.head(HEAD).loss(places, target.labels, target.total)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: float(-unigram[batch.scores[HEAD].labels.cpu().numpy()].mean())}
