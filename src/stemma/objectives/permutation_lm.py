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

from stemma.objectives.base import LM_HEAD, Objective, Requirements
from stemma.objectives.masking import segment_b_mask
from stemma.objectives.xlnet_spans import choose_spans
from stemma.registry import register
from stemma.schema import base
from stemma.schema.base import Conflict, ConflictKey, Count
from stemma.schema.corpus import pair_packings
from stemma.schema.objective import AttentionMaskKind, GenerationCapability, ObjectiveSettings

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG
    from stemma.network.inputs_outputs import NetworkOutput
    from stemma.network.network import Network
    from stemma.objectives.batch import Batch

LM_HEAD_NAME = LM_HEAD
TokensPerTarget = Annotated[int, base.constraint(lambda k: k >= 2,
                                                 "must be 2 or more: with 1 every token is guessed and none is "
                                                      "left to guess it from")]


class PermutationLMSettings(ObjectiveSettings):
    kind: Literal["permutation_lm"]
    context: TokensPerTarget = 6  # the paper's K: one token in so many is guessed
    longest_span: Count = 5  # targets come in spans of up to so many units
    unit: Literal["token", "word"] = "word"
    both_directions: bool = True  # half of the rows are read from their end
    scored: Literal["all", "second"] = "all"  # second: A of a pair is given, and B is guessed from left to right

    sees: ClassVar[AttentionMaskKind] = "permuted"
    needs_query_stream = True

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return () if self.scored == "all" else pair_packings()

    @property
    def generation(self) -> GenerationCapability | None:
        return GenerationCapability("permuted", paired=self.scored == "second")

    @property
    def pair_finetuning_keys(self) -> dict[str, Any] | None:
        return {"scored": "second", "both_directions": False}

    @property
    def predicts_bidirectionally(self) -> bool:
        return self.scored == "all"

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.scored == "second" and self.both_directions:
            yield (ConflictKey("scored",
                               "with both_directions some rows are read from their end: set both_directions=false"),
                   ConflictKey("both_directions", "with scored=second B is read from its start: set it to false"))


@register("objective", "permutation_lm", PermutationLMSettings)
class PermutationLM(Objective):
    settings: PermutationLMSettings
    predicts_tokens = True

    def reversed_rows(self, rows: int) -> np.ndarray:
        """The second half of the batch, so that neither direction of text is a stranger."""
        return np.arange(rows) >= (rows + 1) // 2 if self.settings.both_directions else np.zeros(rows, dtype=bool)

    def requirements(self) -> Requirements:
        from stemma.network.heads import LMHeadSpec

        return Requirements(heads={LM_HEAD_NAME: LMHeadSpec(transform=False, bias=True)})

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """No token is replaced. A past that the memory will keep is a half of its own: it never sees the other half,
        which sees all of it; otherwise a row is one half."""
        if self.settings.scored == "second":
            chosen = segment_b_mask(draft)
            draft.factorization_order = _left_to_right(draft)
            draft.add_query_targets(LM_HEAD_NAME, at=chosen, labels=draft.original_ids)
            return
        chosen = self._choose_targets(draft, rng)
        draft.factorization_order = _factorization_order(draft, chosen, rng.random((draft.rows, draft.template.length)))
        draft.add_query_targets(LM_HEAD_NAME, at=chosen, labels=draft.original_ids)

    def _choose_targets(self, draft: Draft, rng: RNG) -> np.ndarray:
        """(rows, length) the targets: length / K of each row, as many in either half."""
        past, lengths, context = draft.reuse_lengths, draft.lengths, self.settings.context
        wanted = np.maximum(lengths // context, 1)
        later = np.where(past > 0, wanted // 2, wanted)
        units = draft.word_ids
        if self.settings.unit == "token":
            units = np.where(draft.is_text, np.arange(units.size).reshape(units.shape), -1)
        chosen = np.zeros(units.shape, dtype=bool)
        for start, stop, goal in ((np.zeros_like(past), past, wanted - later), (past, lengths, later)):
            place = np.arange(units.shape[1])
            inside = draft.is_text & (place >= start[:, None]) & (place < stop[:, None])
            goal = np.minimum(goal, np.maximum(inside.sum(1) - 1, 0))  # something must be left to guess from
            chosen |= choose_spans(units, start, stop, goal, context, self.settings.longest_span, rng)
        return chosen

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        from stemma.network.inputs_outputs import QUERY

        target = batch.token_targets[LM_HEAD_NAME]
        places = output[QUERY].flatten(0, 1)[target.index]  # (N, width)
        return {self.name: network.head(LM_HEAD_NAME).loss(places, target.labels, target.denominator)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: float(-unigram[batch.token_targets[LM_HEAD_NAME].labels.cpu().numpy()].mean())}


def _left_to_right(draft: Draft) -> np.ndarray:
    """(rows, length) the order in which B is written from A: first all that stands before B, at once, then place by
    place."""
    place = np.arange(draft.is_text.shape[1])
    after = np.maximum(place - draft.segment_b_start()[:, None] + 1, 0)
    # padding comes last
    order: np.ndarray = np.where(place < draft.lengths[:, None], after, draft.is_text.shape[1] + 2)
    return order


def _factorization_order(draft: Draft, targets: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """(rows, length) the factorisation order: in each half first the context, all at once, then targets and special
    tokens one by one. Special tokens wait too: one that saw targets must not be seen by those."""
    place = np.arange(targets.shape[1])
    used, late = place < draft.lengths[:, None], place >= draft.reuse_lengths[:, None]
    single = used & (targets | ~draft.is_text)
    # rank the singles of a row: those of the first half before those of the second, each half shuffled
    ranks = np.argsort(np.argsort(np.where(single, keys + late, 2.0 + place), axis=1), axis=1)
    # 0 is the first half's context, 1.. its singles; then one number for the second half's context, then its singles
    second = late & (draft.reuse_lengths > 0)[:, None]
    order = np.where(second, (single & ~late).sum(1)[:, None] + 1, 0)
    order = np.where(single, ranks + 1 + second, order)
    return np.where(used, order, targets.shape[1] + 2)  # filling comes last: nobody sees it
