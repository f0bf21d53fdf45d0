"""Sentence-order prediction: are A and B in their original order or swapped (ALBERT, arXiv:1909.11942)?

Unlike in next-sentence prediction, the topic does not reveal the answer. StructBERT (arXiv:1908.04577) adds a third
class: B is from another document.
"""

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
    """ALBERT: are A and B in order or swapped? StructBERT adds a third class: B is from another document."""

    kind: Literal["sentence_order"]
    swapped: Probability = 0.5  # probability that A and B are swapped
    other: Probability = 0.0  # probability that B is from another document; 0: two classes

    rearranges_text = True
    attention_mask: ClassVar[AttentionMaskKind] = "full"

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return neighboring_pair_packings()

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.swapped + self.other > 1:
            problem = f"swapped {self.swapped:g} and other {self.other:g} add up to more than 1"
            yield (ConflictKey("swapped", problem), ConflictKey("other", problem))


@register("objective", "sentence_order", SentenceOrderSettings)
class SentenceOrder(RowClassification):
    settings: SentenceOrderSettings
    needs_several_sentences = True

    def __init__(self, name: str, settings: SentenceOrderSettings):
        super().__init__(name, settings)
        self.classes = 3 if settings.other else 2

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """If nothing follows A, there is nothing to swap: B is from another document if that is a class, and otherwise
        the row has no label."""
        spans, settings, capacity = draft.spans, self.settings, draft.template.capacity(pair=True)
        uniform, document, offset = rng.random((draft.rows, 3)).T
        length_a, length_b = spans.part_lengths(0), spans.part_lengths(1)
        without_b = length_b == 0
        swapped = uniform < settings.other + settings.swapped
        labels = np.where(uniform < settings.other, OTHER_DOCUMENT, np.where(swapped, SWAPPED, IN_ORDER))
        labels[without_b] = OTHER_DOCUMENT if settings.other else -1
        if len(draft.subset.document_ranges) < 2:  # there is no other document
            labels[without_b] = -1
            labels[labels == OTHER_DOCUMENT] = IN_ORDER
        other = np.flatnonzero(labels == OTHER_DOCUMENT)
        max_tokens = np.where(without_b, np.maximum(1, capacity - length_a), length_b)[other]
        start, length = sample_other_document(draft, other, max_tokens, document[other], offset[other])
        spans.replace_part(1, other, start, length)
        spans.swap_parts(np.flatnonzero(labels == SWAPPED))
        spans.truncate_pairs(capacity, rng)
        draft.add_row_labels(self.name, labels)
