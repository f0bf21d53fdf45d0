"""Sentence distance: are A and B neighbours (0), of one document but apart (1), or of two documents (2)?
(ERNIE 2.0, arXiv:1907.12412, section 4.2.2)"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from stemma.objectives.classifiers import RowClassification
from stemma.objectives.negative_sampling import sample_other_document, segment_a_start
from stemma.registry import register
from stemma.schema.corpus import neighboring_pair_packings
from stemma.schema.objective import AttentionMaskKind, ObjectiveSettings

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG

ADJACENT, SAME_DOCUMENT, OTHER_DOCUMENT = 0, 1, 2
# Where a row cannot have the answer that was drawn, the nearest one that it can.
FALLBACK = np.array([[ADJACENT, SAME_DOCUMENT, OTHER_DOCUMENT], [SAME_DOCUMENT, ADJACENT, OTHER_DOCUMENT],
                     [OTHER_DOCUMENT, SAME_DOCUMENT, ADJACENT]])


class SentenceDistanceSettings(ObjectiveSettings):
    """ERNIE 2.0: are A and B neighbours, of one document, or of two?"""

    kind: Literal["sentence_distance"]

    rearranges_text = True
    sees: ClassVar[AttentionMaskKind] = "full"

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return neighboring_pair_packings()


@register("objective", "sentence_distance", SentenceDistanceSettings)
class SentenceDistance(RowClassification):
    settings: SentenceDistanceSettings
    classes = 3
    needs_several_sentences = True

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """A stays; a third each keep their B, get one of the same document, or one of another, of the same length."""
        pieces, capacity = draft.spans, draft.template.capacity(pair=True)
        answer, where, offset = rng.random((draft.rows, 3)).T
        for_a, for_b = pieces.part_lengths(0), pieces.part_lengths(1)
        room = np.where(for_b > 0, for_b, np.maximum(1, capacity - for_a))
        choices = _distant_sentence_counts(draft, segment_a_start(draft), for_a)
        possible = np.stack([for_b > 0, choices.sum(1) > 0, np.full(draft.rows,
                                                                    len(draft.subset.document_ranges) > 1)], axis=1)
        order = FALLBACK[(answer * 3).astype(np.int64)]  # (rows, 3)
        able = np.take_along_axis(possible, order, axis=1)
        labels = np.where(able.any(1), order[np.arange(draft.rows), able.argmax(1)], -1)

        apart = np.flatnonzero(labels == SAME_DOCUMENT)
        start, length = _sample_distant_sentences(draft, apart, choices[apart], room[apart], offset[apart])
        pieces.replace_part(1, apart, start, length)
        other = np.flatnonzero(labels == OTHER_DOCUMENT)
        start, length = sample_other_document(draft, other, room[other], where[other], offset[other])
        pieces.replace_part(1, other, start, length)
        pieces.truncate_pairs(capacity, rng)
        draft.add_row_labels(self.name, labels)


def _distant_sentence_counts(draft: Draft, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """(rows, 2) how many sentences of A's document stand before it and behind it, those next to it not counted."""
    first, last, begins, ends = _sentences(draft, start, length)
    return np.stack([np.maximum(begins - first - 1, 0), np.maximum(last - ends - 1, 0)], axis=1)


def _sentences(draft: Draft, start: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, ...]:
    """Sentences by number: the first of A's document and the end of its last, the first of A and the end of its last
    (where A was cut, the whole sentence counts)."""
    sentences, documents = draft.corpus.sentence_starts, draft.subset.document_ranges
    document = documents[np.searchsorted(documents[:, 0], start, side="right") - 1]
    return (np.searchsorted(sentences, document[:, 0]), np.searchsorted(sentences, document[:, 1]),
            np.searchsorted(sentences, start, side="right") - 1, np.searchsorted(sentences, start + length))


def _sample_distant_sentences(draft: Draft, rows: np.ndarray, choices: np.ndarray, max_tokens: np.ndarray,
           offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(start, length) of whole sentences that fill `room`, from any sentence that is not next to A on, and that stop
    before they are."""
    sentences = draft.corpus.sentence_starts
    first, last, begins, ends = _sentences(draft, segment_a_start(draft)[rows], draft.spans.part_lengths(0)[rows])
    pick = (offset * choices.sum(1)).astype(np.int64)
    ahead = pick < choices[:, 0]
    number = np.where(ahead, first + pick, ends + 1 + pick - choices[:, 0])
    start = sentences[number]
    stop = sentences[np.minimum(np.searchsorted(sentences, start + max_tokens), np.where(ahead, begins - 1, last))]
    return start, stop - start
