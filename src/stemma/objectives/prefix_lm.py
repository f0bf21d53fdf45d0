"""Prefix language modelling: a prefix sees itself from both sides, and what follows is guessed token by token
(arXiv:1910.10683, section 3.2.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from stemma.objectives.causal_lm import HEAD, NextToken
from stemma.registry import register
from stemma.schema.corpus import packings
from stemma.schema.task import ObjectiveSettings, Sees, Writing

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.randomness import Randomness


class PrefixLMSettings(ObjectiveSettings):
    """The next token after a prefix that sees itself in full; the prefix ends where B begins, or at random."""

    kind: Literal["prefix_lm"]

    roles = frozenset({"end"})
    sees: ClassVar[Sees] = "prefix"

    @property
    def needs_packing(self) -> tuple[str, ...]:
        return packings(contiguous=False)

    @property
    def writing(self) -> Writing | None:
        return Writing("prefix", paired=True)

    @property
    def for_pairs(self) -> dict[str, Any] | None:
        return {}


@register("objective", "prefix_lm", PrefixLMSettings)
class PrefixLM(NextToken):
    settings: PrefixLMSettings

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        """The prefix ends where B begins; of a single text at any place, so that something is left on either side."""
        anywhere = 1 + (rng.random((draft.rows, 1))[:, 0] * (draft.lengths - 1)).astype(np.int64)
        draft.prefix = np.where(draft.pieces.part_lengths(1) > 0, draft.second(), anywhere)
        following = draft.following()
        at = (following >= 0) & (np.arange(following.shape[1]) + 1 >= draft.prefix[:, None])
        draft.score(HEAD, at=at, labels=following)
