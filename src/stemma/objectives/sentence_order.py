"""Sentence order: do A and B stand as they were written (ALBERT, arXiv:1909.11942)? Topics alone do not
tell, as they do in next-sentence prediction. StructBERT (arXiv:1908.04577) adds a third answer: B is from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from stemma.objectives.classifiers import RowClassification
from stemma.objectives.negative_sampling import sample_other_document
from stemma.registry import register
from stemma.schema.base import Conflict, ConflictKey, Probability
from stemma.schema.corpus import neighboring_pair_packings
from stemma.schema.objective import AttentionMaskKind, ObjectiveSettings

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG

IN_ORDER, SWAPPED, OTHER_DOCUMENT = 0, 1, 2


class SentenceOrderSettings(ObjectiveSettings):
    """ALBERT: do A and B stand in their order? StructBERT adds a third answer: B is from another document."""

    kind: Literal["sentence_order"]
    swapped: Probability = 0.5
    other: Probability = 0.0  # 0 = two classes

    rearranges_text = True
    sees: ClassVar[AttentionMaskKind] = "full"

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return neighboring_pair_packings()

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.swapped + self.other > 1:
            what = f"swapped {self.swapped:g} and other {self.other:g} add up to more than 1"
            yield (ConflictKey("swapped", what), ConflictKey("other", what))


@register("objective", "sentence_order", SentenceOrderSettings)
class SentenceOrder(RowClassification):
    settings: SentenceOrderSettings
    needs_several_sentences = True

    def __init__(self, name: str, settings: SentenceOrderSettings):
        super().__init__(name, settings)
        self.classes = 3 if settings.other else 2

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """Where A stood alone there is nothing to swap: B comes from elsewhere if that is an answer, and otherwise the
        row is not asked."""
        pieces, settings, capacity = draft.spans, self.settings, draft.template.capacity(pair=True)
        coin, where, offset = rng.random((draft.rows, 3)).T
        for_a, for_b = pieces.part_lengths(0), pieces.part_lengths(1)
        alone = for_b == 0
        labels = np.where(coin < settings.other, OTHER_DOCUMENT, np.where(coin < settings.other + settings.swapped,
                                                                          SWAPPED,
                                                                 IN_ORDER))
        labels[alone] = OTHER_DOCUMENT if settings.other else -1
        if len(draft.subset.document_ranges) < 2:  # there is no elsewhere
            labels[alone] = -1
            labels[labels == OTHER_DOCUMENT] = IN_ORDER
        elsewhere = np.flatnonzero(labels == OTHER_DOCUMENT)
        room = np.where(alone, np.maximum(1, capacity - for_a), for_b)[elsewhere]
        start, length = sample_other_document(draft, elsewhere, room, where[elsewhere], offset[elsewhere])
        pieces.replace_part(1, elsewhere, start, length)
        pieces.swap_parts(np.flatnonzero(labels == SWAPPED))
        pieces.truncate_pairs(capacity, rng)
        draft.add_row_labels(self.name, labels)
