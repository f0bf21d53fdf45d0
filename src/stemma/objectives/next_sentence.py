"""Next-sentence prediction: does B follow A, or is it from another document? (BERT, arXiv:1810.04805)"""

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
    random: Probability = 0.5  # probability that B is from another document

    rearranges_text = True
    attention_mask: ClassVar[AttentionMaskKind] = "full"

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return neighboring_pair_packings()


@register("objective", "next_sentence", NextSentenceSettings)
class NextSentence(RowClassification):
    settings: NextSentenceSettings
    classes = 2
    needs_several_sentences = True

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """Label 0: B follows A; 1: B is from another document and as long as the original B, so that the row length
        does not reveal the label. If nothing follows A, B fills the rest of the row (as in the released code)."""
        spans, capacity = draft.spans, draft.template.capacity(pair=True)
        uniform, document, offset = rng.random((draft.rows, 3)).T
        length_a, length_b = spans.part_lengths(0), spans.part_lengths(1)
        without_b = length_b == 0  # nothing follows A in its document
        negative = np.flatnonzero((uniform < self.settings.random) | without_b)
        max_tokens = np.where(without_b, np.maximum(1, capacity - length_a), length_b)[negative]
        start, length = sample_other_document(draft, negative, max_tokens, document[negative], offset[negative])
        spans.replace_part(1, negative, start, length)
        spans.truncate_pairs(capacity, rng)
        labels = np.zeros(draft.rows, dtype=np.int64)
        labels[negative] = 1
        draft.add_row_labels(self.name, labels)
