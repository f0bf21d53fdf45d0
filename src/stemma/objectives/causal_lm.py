"""Causal language modelling: at every place guess the next token from those before it (GPT, 2018).

Read backwards, the next token is the one before: the same task on the mirrored text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from stemma.objectives.base import VOCABULARY, Needs, Objective
from stemma.registry import register
from stemma.schema.base import Blame, Conflict
from stemma.schema.corpus import two_texts
from stemma.schema.task import ObjectiveSettings, Sees, Writing

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.corpus.randomness import Randomness
    from stemma.network.network import Network
    from stemma.network.streams import Hidden
    from stemma.objectives.batch import Batch

HEAD = VOCABULARY


class NextToken(Objective):
    """What tasks share in which a place guesses the token after it."""

    guesses_tokens = True
    guesses_next = True

    def needs(self) -> Needs:
        from stemma.network.heads import TokenHead

        return Needs(heads={HEAD: TokenHead(transform=False, bias=False)})

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        target = batch.scores[HEAD]
        places = hidden["encoder"].flatten(0, 1)
        if len(target.index) < len(places):  # where every place is scored, as usual, there is nothing to gather
            places = places[target.index]
        return {self.name: network.head(HEAD).loss(places, target.labels, target.total)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: float(-unigram[batch.scores[HEAD].labels.cpu().numpy()].mean())}


class CausalLMSettings(ObjectiveSettings):
    kind: Literal["causal_lm"]
    direction: Literal["forward", "backward"] = "forward"  # backward reads every text from its end
    scored: Literal["all", "second"] = "all"  # second: A of a pair is given, and only B is guessed
    transform: bool = False  # a layer and a norm before the scores, and a bias, as masked models have (Ettin)

    roles = frozenset({"end"})  # parts documents; a vocabulary without one (openai-gpt's) still serves
    sees: ClassVar[Sees] = "causal"

    @property
    def needs_packing(self) -> tuple[str, ...]:
        return () if self.scored == "all" else two_texts()

    @property
    def writing(self) -> Writing | None:
        return Writing("next") if self.scored == "all" else Writing("prefix", paired=True)

    @property
    def for_pairs(self) -> dict[str, Any] | None:
        return {"scored": "second"}

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.scored == "second" and self.direction == "backward":
            yield (Blame("scored", "with direction=backward B is read first, so it cannot be guessed from A"),
                   Blame("direction", "with scored=second A must be read first"))


@register("objective", "causal_lm", CausalLMSettings)
class CausalLM(NextToken):
    settings: CausalLMSettings

    def needs(self) -> Needs:
        from stemma.network.heads import TokenHead

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
