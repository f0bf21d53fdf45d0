"""Next-sentence prediction: does B really follow A, or does it come from another document? (BERT, arXiv:1810.04805)"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from stemma.objectives.classifiers import RowClassification
from stemma.objectives.negative_sampling import sample_other_document
from stemma.registry import register
from stemma.schema.base import Probability
from stemma.schema.corpus import neighboring_pair_packings
from stemma.schema.objective import AttentionMaskKind, ObjectiveSettings

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG


class NextSentenceSettings(ObjectiveSettings):
    kind: Literal["next_sentence"]
    random: Probability = 0.5  # how often B comes from another document

    rearranges_text = True
    sees: ClassVar[AttentionMaskKind] = "full"

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return neighboring_pair_packings()


@register("objective", "next_sentence", NextSentenceSettings)
class NextSentence(RowClassification):
    settings: NextSentenceSettings
    classes = 2
    needs_several_sentences = True

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """Label 0: B follows; 1: B is from elsewhere, as long as the one whose place it takes, so that a row's length
        does not tell; where A stood alone, long enough to fill what A leaves (as published)."""
        pieces, capacity = draft.spans, draft.template.capacity(pair=True)
        coin, where, offset = rng.random((draft.rows, 3)).T
        for_a, for_b = pieces.part_lengths(0), pieces.part_lengths(1)
        alone = for_b == 0  # nothing follows A in its document
        elsewhere = np.flatnonzero((coin < self.settings.random) | alone)
        room = np.where(alone, np.maximum(1, capacity - for_a), for_b)[elsewhere]
        start, length = sample_other_document(draft, elsewhere, room, where[elsewhere], offset[elsewhere])
        pieces.replace_part(1, elsewhere, start, length)
        pieces.truncate_pairs(capacity, rng)
        labels = np.zeros(draft.rows, dtype=np.int64)
        labels[elsewhere] = 1
        draft.add_row_labels(self.name, labels)
