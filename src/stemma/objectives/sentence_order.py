"""Sentence order: do A and B stand as they were written (ALBERT, arXiv:1909.11942)? Topics alone do not
tell, as they do in next-sentence prediction. StructBERT (arXiv:1908.04577) adds a third answer: B is from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from stemma.objectives.classifiers import RowClassifier
from stemma.objectives.elsewhere import from_another_document
from stemma.registry import register
from stemma.schema.base import Blame, Conflict, Probability
from stemma.schema.corpus import neighbours
from stemma.schema.task import ObjectiveSettings, Sees

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.randomness import Randomness

IN_ORDER, SWAPPED, OTHER = 0, 1, 2


class SentenceOrderSettings(ObjectiveSettings):
    """ALBERT: do A and B stand in their order? StructBERT adds a third answer: B is from another document."""

    kind: Literal["sentence_order"]
    swapped: Probability = 0.5
    other: Probability = 0.0  # 0 = two classes

    rearranges = True
    sees: ClassVar[Sees] = "full"

    @property
    def needs_packing(self) -> tuple[str, ...]:
        return neighbours()

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.swapped + self.other > 1:
            what = f"swapped {self.swapped:g} and other {self.other:g} add up to more than 1"
            yield (Blame("swapped", what), Blame("other", what))


@register("objective", "sentence_order", SentenceOrderSettings)
class SentenceOrder(RowClassifier):
    settings: SentenceOrderSettings
    needs_sentences = True

    def __init__(self, name: str, settings: SentenceOrderSettings):
        super().__init__(name, settings)
        self.classes = 3 if settings.other else 2

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        """Where A stood alone there is nothing to swap: B comes from elsewhere if that is an answer, and otherwise the
        row is not asked."""
        pieces, settings, capacity = draft.pieces, self.settings, draft.layout.capacity(pair=True)
        coin, where, offset = rng.random((draft.rows, 3)).T
        for_a, for_b = pieces.part_lengths(0), pieces.part_lengths(1)
        alone = for_b == 0
        labels = np.where(coin < settings.other, OTHER, np.where(coin < settings.other + settings.swapped, SWAPPED,
                                                                 IN_ORDER))
        labels[alone] = OTHER if settings.other else -1
        if len(draft.view.documents) < 2:  # there is no elsewhere
            labels[alone] = -1
            labels[labels == OTHER] = IN_ORDER
        elsewhere = np.flatnonzero(labels == OTHER)
        room = np.where(alone, np.maximum(1, capacity - for_a), for_b)[elsewhere]
        start, length = from_another_document(draft, elsewhere, room, where[elsewhere], offset[elsewhere])
        pieces.replace_part(1, elsewhere, start, length)
        pieces.swap_parts(np.flatnonzero(labels == SWAPPED))
        pieces.truncate_pairs(capacity, rng)
        draft.label(self.name, labels)
