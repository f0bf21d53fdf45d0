"""Prefix language modelling: a prefix sees itself from both sides, and what follows is guessed token by token
(arXiv:1910.10683, section 3.2.2)."""

from __future__ import annotations

import numpy as np

from stemma.corpus.draft import Draft
from stemma.corpus.randomness import Randomness
from stemma.objectives.causal_lm import HEAD, NextToken
from stemma.schema.objective import PrefixLMSettings


class PrefixLM(NextToken):
    settings: PrefixLMSettings

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        """The prefix ends where B begins; of a single text at any place, so that something is left on either side."""
        anywhere = 1 + (rng.random((draft.rows, 1))[:, 0] * (draft.lengths - 1)).astype(np.int64)
        draft.prefix = np.where(draft.pieces.part_lengths(1) > 0, draft.second(), anywhere)
        following = draft.following()
        at = (following >= 0) & (np.arange(following.shape[1]) + 1 >= draft.prefix[:, None])
        draft.score(HEAD, at=at, labels=following)
