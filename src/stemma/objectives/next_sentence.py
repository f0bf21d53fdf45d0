"""Next-sentence prediction: does B really follow A, or does it come from another document? (BERT, arXiv:1810.04805)"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from stemma.objectives.classifiers import RowClassifier
from stemma.objectives.elsewhere import from_another_document
from stemma.registry import register
from stemma.schema.base import Probability
from stemma.schema.corpus import neighbours
from stemma.schema.task import ObjectiveSettings, Sees

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.randomness import Randomness


class NextSentenceSettings(ObjectiveSettings):
    kind: Literal["next_sentence"]
    random: Probability = 0.5  # how often B comes from another document

    rearranges = True
    sees: ClassVar[Sees] = "full"

    @property
    def needs_packing(self) -> tuple[str, ...]:
        return neighbours()


@register("objective", "next_sentence", NextSentenceSettings)
class NextSentence(RowClassifier):
    settings: NextSentenceSettings
    classes = 2
    needs_sentences = True

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        """Label 0: B follows; 1: B is from elsewhere, as long as the one whose place it takes, so that a row's length
        does not tell; where A stood alone, long enough to fill what A leaves (as published)."""
        pieces, capacity = draft.pieces, draft.layout.capacity(pair=True)
        coin, where, offset = rng.random((draft.rows, 3)).T
        for_a, for_b = pieces.part_lengths(0), pieces.part_lengths(1)
        alone = for_b == 0  # nothing follows A in its document
        elsewhere = np.flatnonzero((coin < self.settings.random) | alone)
        room = np.where(alone, np.maximum(1, capacity - for_a), for_b)[elsewhere]
        start, length = from_another_document(draft, elsewhere, room, where[elsewhere], offset[elsewhere])
        pieces.replace_part(1, elsewhere, start, length)
        pieces.truncate_pairs(capacity, rng)
        labels = np.zeros(draft.rows, dtype=np.int64)
        labels[elsewhere] = 1
        draft.label(self.name, labels)
