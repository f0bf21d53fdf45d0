"""Prefix language modelling: bidirectional attention over a prefix, next-token prediction after it
(arXiv:1910.10683, section 3.2.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from stemma.objectives.causal_lm import LM_HEAD_NAME, NextTokenObjective
from stemma.registry import register
from stemma.schema.corpus import packing_names
from stemma.schema.objective import AttentionMaskKind, GenerationCapability, ObjectiveSettings

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG


class PrefixLMSettings(ObjectiveSettings):
    """Next-token prediction after a bidirectional prefix, which ends at the start of B or at a random position."""

    kind: Literal["prefix_lm"]

    special_tokens = frozenset({"end"})
    attention_mask: ClassVar[AttentionMaskKind] = "prefix"

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return packing_names(contiguous=False)

    @property
    def generation(self) -> GenerationCapability | None:
        return GenerationCapability("prefix", paired=True)

    @property
    def sentence_scores(self) -> tuple[str, ...]:
        return ("prefix",)

    @property
    def pair_finetuning_keys(self) -> dict[str, Any] | None:
        return {}


@register("objective", "prefix_lm", PrefixLMSettings)
class PrefixLM(NextTokenObjective):
    settings: PrefixLMSettings

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """The prefix ends at the start of B; in a single text at a random position that leaves both sides non-empty."""
        random_lengths = 1 + (rng.random((draft.rows, 1))[:, 0] * (draft.lengths - 1)).astype(np.int64)
        draft.prefix_lengths = np.where(draft.spans.part_lengths(1) > 0, draft.segment_b_start(), random_lengths)
        labels = draft.next_tokens()
        is_target = (labels >= 0) & (np.arange(labels.shape[1]) + 1 >= draft.prefix_lengths[:, None])
        draft.add_token_targets(LM_HEAD_NAME, at=is_target, labels=labels)
