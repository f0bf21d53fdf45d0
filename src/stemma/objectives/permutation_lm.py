"""Permutation language modelling: predict tokens autoregressively in a random factorization order (XLNet,
arXiv:1906.08237).

Tokens keep their positions; only the attention mask follows the order. One token in K is a target. It attends to all
non-targets and to the targets before it in the order, so the context is bidirectional without a mask token. A target
must not attend to itself, so it is predicted through the query stream, which knows only its position.

For pairs the order can be fixed: A is context and B is predicted from left to right, as in generation.
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
TokensPerTarget = Annotated[int, base.constraint(
    lambda k: k >= 2, "must be 2 or more: with 1 every token is predicted and none is left as context")]


class PermutationLMSettings(ObjectiveSettings):
    kind: Literal["permutation_lm"]
    context: TokensPerTarget = 6  # the paper's K: one token in K is predicted
    longest_span: Count = 5  # maximum length of a target span, in units
    unit: Literal["token", "word"] = "word"
    both_directions: bool = True  # half of the rows are reversed
    scored: Literal["all", "second"] = "all"  # second: A of a pair is context, B is predicted from left to right

    attention_mask: ClassVar[AttentionMaskKind] = "permuted"
    needs_query_stream = True

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return () if self.scored == "all" else pair_packings()

    @property
    def generation(self) -> GenerationCapability | None:
        return GenerationCapability("permuted", paired=self.scored == "second")

    @property
    def sentence_scores(self) -> tuple[str, ...]:
        return ("permuted", "causal") if self.scored == "all" else ()

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
        """The second half of the batch is reversed, so that the model learns both directions."""
        return np.arange(rows) >= (rows + 1) // 2 if self.settings.both_directions else np.zeros(rows, dtype=bool)

    def requirements(self) -> Requirements:
        from stemma.network.heads import LMHeadSpec

        return Requirements(heads={LM_HEAD_NAME: LMHeadSpec(transform=False, bias=True)})

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """No token is replaced. The part of a row that the memory will reuse comes first in the order: it never attends
        to the second part, which attends to all of it."""
        if self.settings.scored == "second":
            targets = segment_b_mask(draft)
            draft.factorization_order = _left_to_right(draft)
        else:
            targets = self._choose_targets(draft, rng)
            keys = rng.random((draft.rows, draft.template.length))
            draft.factorization_order = _factorization_order(draft, targets, keys)
        draft.add_query_targets(LM_HEAD_NAME, at=targets, labels=draft.original_ids)

    def _choose_targets(self, draft: Draft, rng: RNG) -> np.ndarray:
        """(rows, length) bool: targets, length / K per row, half of them in the part that the memory reuses."""
        reused, lengths, context = draft.reuse_lengths, draft.lengths, self.settings.context
        num_targets = np.maximum(lengths // context, 1)
        num_later = np.where(reused > 0, num_targets // 2, num_targets)
        units = draft.word_ids
        if self.settings.unit == "token":
            units = np.where(draft.is_text, np.arange(units.size).reshape(units.shape), -1)
        targets = np.zeros(units.shape, dtype=bool)
        for start, stop, count in ((np.zeros_like(reused), reused, num_targets - num_later),
                                   (reused, lengths, num_later)):
            position = np.arange(units.shape[1])
            inside = draft.is_text & (position >= start[:, None]) & (position < stop[:, None])
            count = np.minimum(count, np.maximum(inside.sum(1) - 1, 0))  # at least one token remains as context
            targets |= choose_spans(units, start, stop, count, context, self.settings.longest_span, rng)
        return targets

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        from stemma.network.inputs_outputs import QUERY

        target = batch.token_targets[LM_HEAD_NAME]
        hidden = output[QUERY].flatten(0, 1)[target.index]  # (N, width)
        return {self.name: network.head(LM_HEAD_NAME).loss(hidden, target.labels, target.denominator)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: float(-unigram[batch.token_targets[LM_HEAD_NAME].labels.cpu().numpy()].mean())}


def _left_to_right(draft: Draft) -> np.ndarray:
    """(rows, length) factorization order for predicting B from left to right: everything before B comes first."""
    position = np.arange(draft.is_text.shape[1])
    rank = np.maximum(position - draft.segment_b_start()[:, None] + 1, 0)
    # padding comes last
    order: np.ndarray = np.where(position < draft.lengths[:, None], rank, draft.is_text.shape[1] + 2)
    return order


def _factorization_order(draft: Draft, targets: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """(rows, length) factorization order: in each part of a row first the context, all at once, then targets and
    special tokens one by one. Special tokens have a rank too: targets must not attend to one that attends to them."""
    position = np.arange(targets.shape[1])
    used, late = position < draft.lengths[:, None], position >= draft.reuse_lengths[:, None]
    single = used & (targets | ~draft.is_text)
    # rank targets and special tokens: those of the first part before those of the second, each part shuffled
    ranks = np.argsort(np.argsort(np.where(single, keys + late, 2.0 + position), axis=1), axis=1)
    # 0: context of the first part; 1..: its targets; then one rank for the context of the second part, then its targets
    second = late & (draft.reuse_lengths > 0)[:, None]
    order = np.where(second, (single & ~late).sum(1)[:, None] + 1, 0)
    order = np.where(single, ranks + 1 + second, order)
    return np.where(used, order, targets.shape[1] + 2)  # padding comes last: no position attends to it
