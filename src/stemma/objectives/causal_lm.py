"""Causal language modelling: at every place guess the next token from those before it (GPT, 2018).

Read backwards, the next token is the one before: the same task on the mirrored text.
"""

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
from stemma.schema.objective import CausalLMSettings

HEAD = "vocabulary"


class NextToken(Objective):
    """What tasks share in which a place guesses the token after it."""

    guesses_tokens = True
    guesses_next = True

    def needs(self) -> Needs:
        return Needs(heads={HEAD: TokenHead(transform=False, bias=False)})

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        target = batch.scores[HEAD]
        places = hidden["encoder"].flatten(0, 1)
        if len(target.index) < len(places):  # where every place is scored, as usual, there is nothing to gather
            places = places[target.index]
        return {self.name: network.head(HEAD).loss(places, target.labels, target.total)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: float(-unigram[batch.scores[HEAD].labels.cpu().numpy()].mean())}


class CausalLM(NextToken):
    settings: CausalLMSettings

    def needs(self) -> Needs:
        return Needs(heads={HEAD: TokenHead(transform=self.settings.transform, bias=self.settings.transform)})

    def backward_rows(self, rows: int) -> np.ndarray:
        return np.full(rows, self.settings.direction == "backward")

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        """Nothing is hidden: nobody sees what comes later."""
        following = draft.following()
        at = following >= 0
        if self.settings.scored == "second":
            at &= np.arange(at.shape[1]) + 1 >= draft.second()[:, None]
        draft.score(HEAD, at=at, labels=following)
