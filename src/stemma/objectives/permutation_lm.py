"""Permutation language modelling: guess some tokens one after the other in a random order (XLNet, arXiv:1906.08237).

Tokens keep their places; what is shuffled is who may see whom. One token in K is a target: it sees all that are none,
and the targets before it in the order, so that both sides are used without a mask token and each guess builds on the
ones before. A target must not see itself, so it is guessed through a second stream that knows only the place.

Of a pair, the order may be fixed: the first text is the context, and the second is guessed from left to right, which is
how such a model writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from stemma.objectives.base import VOCABULARY, Needs, Objective
from stemma.objectives.masking import second_text
from stemma.objectives.spans import choose_spans
from stemma.registry import register
from stemma.schema import base
from stemma.schema.base import Blame, Conflict, Count
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
Context = Annotated[int, base.limit(lambda k: k >= 2, "must be 2 or more: with 1 every token is guessed and none is "
                                                      "left to guess it from")]


class PermutationLMSettings(ObjectiveSettings):
    kind: Literal["permutation_lm"]
    context: Context = 6  # the paper's K: one token in so many is guessed
    longest_span: Count = 5  # targets come in spans of up to so many units
    unit: Literal["token", "word"] = "word"
    both_directions: bool = True  # half of the rows are read from their end
    scored: Literal["all", "second"] = "all"  # second: A of a pair is given, and B is guessed from left to right

    sees: ClassVar[Sees] = "permuted"
    needs_query = True

    @property
    def needs_packing(self) -> tuple[str, ...]:
        return () if self.scored == "all" else two_texts()

    @property
    def writing(self) -> Writing | None:
        return Writing("permuted", paired=self.scored == "second")

    @property
    def for_pairs(self) -> dict[str, Any] | None:
        return {"scored": "second", "both_directions": False}

    @property
    def guesses_from_both_sides(self) -> bool:
        return self.scored == "all"

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.scored == "second" and self.both_directions:
            yield (Blame("scored", "with both_directions some rows are read from their end: set both_directions=false"),
                   Blame("both_directions", "with scored=second B is read from its start: set it to false"))


@register("objective", "permutation_lm", PermutationLMSettings)
class PermutationLM(Objective):
    settings: PermutationLMSettings
    guesses_tokens = True

    def backward_rows(self, rows: int) -> np.ndarray:
        """The second half of the batch, so that neither direction of text is a stranger."""
        return np.arange(rows) >= (rows + 1) // 2 if self.settings.both_directions else np.zeros(rows, dtype=bool)

    def needs(self) -> Needs:
        from stemma.network.heads import TokenHead

        return Needs(heads={HEAD: TokenHead(transform=False, bias=True)})

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        """No token is replaced. A past that the memory will keep is a half of its own: it never sees the other half,
        which sees all of it; otherwise a row is one half."""
        if self.settings.scored == "second":
            chosen = second_text(draft)
            draft.order = _left_to_right(draft)
            draft.query(HEAD, at=chosen, labels=draft.original)
            return
        chosen = self._choose(draft, rng)
        draft.order = _order(draft, chosen, rng.random((draft.rows, draft.layout.length)))
        draft.query(HEAD, at=chosen, labels=draft.original)

    def _choose(self, draft: Draft, rng: Randomness) -> np.ndarray:
        """(rows, length) the targets: length / K of each row, as many in either half."""
        past, lengths, context = draft.past, draft.lengths, self.settings.context
        wanted = np.maximum(lengths // context, 1)
        later = np.where(past > 0, wanted // 2, wanted)
        units = draft.words
        if self.settings.unit == "token":
            units = np.where(draft.text, np.arange(units.size).reshape(units.shape), -1)
        chosen = np.zeros(units.shape, dtype=bool)
        for start, stop, goal in ((np.zeros_like(past), past, wanted - later), (past, lengths, later)):
            place = np.arange(units.shape[1])
            inside = draft.text & (place >= start[:, None]) & (place < stop[:, None])
            goal = np.minimum(goal, np.maximum(inside.sum(1) - 1, 0))  # something must be left to guess from
            chosen |= choose_spans(units, start, stop, goal, context, self.settings.longest_span, rng)
        return chosen

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        from stemma.network.streams import QUERY

        target = batch.scores[HEAD]
        places = hidden[QUERY].flatten(0, 1)[target.index]  # (N, width)
        return {self.name: network.head(HEAD).loss(places, target.labels, target.total)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: float(-unigram[batch.scores[HEAD].labels.cpu().numpy()].mean())}


def _left_to_right(draft: Draft) -> np.ndarray:
    """(rows, length) the order in which B is written from A: first all that stands before B, at once, then place by
    place."""
    place = np.arange(draft.text.shape[1])
    after = np.maximum(place - draft.second()[:, None] + 1, 0)
    order: np.ndarray = np.where(place < draft.lengths[:, None], after, draft.text.shape[1] + 2)  # padding comes last
    return order


def _order(draft: Draft, chosen: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """(rows, length) the factorisation order: in each half first the context, all at once, then targets and special
    tokens one by one. Special tokens wait too: one that saw targets must not be seen by those."""
    place = np.arange(chosen.shape[1])
    used, late = place < draft.lengths[:, None], place >= draft.past[:, None]
    single = used & (chosen | ~draft.text)
    # rank the singles of a row: those of the first half before those of the second, each half shuffled
    ranks = np.argsort(np.argsort(np.where(single, keys + late, 2.0 + place), axis=1), axis=1)
    # 0 is the first half's context, 1.. its singles; then one number for the second half's context, then its singles
    second = late & (draft.past > 0)[:, None]
    order = np.where(second, (single & ~late).sum(1)[:, None] + 1, 0)
    order = np.where(single, ranks + 1 + second, order)
    return np.where(used, order, chosen.shape[1] + 2)  # filling comes last: nobody sees it
