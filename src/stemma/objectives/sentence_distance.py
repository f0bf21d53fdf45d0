"""Sentence distance: are A and B adjacent (0), distant in one document (1), or from two documents (2)?
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
# The labels to try in order, by sampled label: a row cannot have every label.
FALLBACK = np.array([[ADJACENT, SAME_DOCUMENT, OTHER_DOCUMENT], [SAME_DOCUMENT, ADJACENT, OTHER_DOCUMENT],
                     [OTHER_DOCUMENT, SAME_DOCUMENT, ADJACENT]])


class SentenceDistanceSettings(ObjectiveSettings):
    """ERNIE 2.0: are A and B adjacent, from one document, or from two?"""

    kind: Literal["sentence_distance"]

    rearranges_text = True
    attention_mask: ClassVar[AttentionMaskKind] = "full"

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return neighboring_pair_packings()


@register("objective", "sentence_distance", SentenceDistanceSettings)
class SentenceDistance(RowClassification):
    settings: SentenceDistanceSettings
    classes = 3
    needs_several_sentences = True

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """A stays. A third of the rows keeps its B, a third gets a B from the same document, a third from another one.
        A new B is as long as the old one."""
        spans, capacity = draft.spans, draft.template.capacity(pair=True)
        label_uniform, document, offset = rng.random((draft.rows, 3)).T
        length_a, length_b = spans.part_lengths(0), spans.part_lengths(1)
        max_tokens = np.where(length_b > 0, length_b, np.maximum(1, capacity - length_a))
        num_distant = _distant_sentence_counts(draft, segment_a_start(draft), length_a)
        several_documents = np.full(draft.rows, len(draft.subset.document_ranges) > 1)
        possible = np.stack([length_b > 0, num_distant.sum(1) > 0, several_documents], axis=1)
        order = FALLBACK[(label_uniform * 3).astype(np.int64)]  # (rows, 3)
        in_order = np.take_along_axis(possible, order, axis=1)
        labels = np.where(in_order.any(1), order[np.arange(draft.rows), in_order.argmax(1)], -1)

        distant = np.flatnonzero(labels == SAME_DOCUMENT)
        start, length = _sample_distant_sentences(draft, distant, num_distant[distant], max_tokens[distant],
                                                  offset[distant])
        spans.replace_part(1, distant, start, length)
        other = np.flatnonzero(labels == OTHER_DOCUMENT)
        start, length = sample_other_document(draft, other, max_tokens[other], document[other], offset[other])
        spans.replace_part(1, other, start, length)
        spans.truncate_pairs(capacity, rng)
        draft.add_row_labels(self.name, labels)


def _distant_sentence_counts(draft: Draft, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """(rows, 2) numbers of sentences before and after A in its document, the adjacent ones not counted."""
    document_first, document_stop, a_first, a_stop = _sentences(draft, start, length)
    return np.stack([np.maximum(a_first - document_first - 1, 0), np.maximum(document_stop - a_stop - 1, 0)], axis=1)


def _sentences(draft: Draft, start: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, ...]:
    """Sentence indices: first and end (exclusive) of the document of A, first and end of A. A truncated sentence counts
    as a whole one."""
    sentences, documents = draft.corpus.sentence_starts, draft.subset.document_ranges
    document = documents[np.searchsorted(documents[:, 0], start, side="right") - 1]
    return (np.searchsorted(sentences, document[:, 0]), np.searchsorted(sentences, document[:, 1]),
            np.searchsorted(sentences, start, side="right") - 1, np.searchsorted(sentences, start + length))


def _sample_distant_sentences(draft: Draft, rows: np.ndarray, num_distant: np.ndarray, max_tokens: np.ndarray,
                              offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(start, length) of whole sentences of about `max_tokens` tokens, starting at a random sentence that is not
    adjacent to A and stopping before an adjacent one."""
    sentences = draft.corpus.sentence_starts
    document_first, document_stop, a_first, a_stop = _sentences(draft, segment_a_start(draft)[rows],
                                                                draft.spans.part_lengths(0)[rows])
    choice = (offset * num_distant.sum(1)).astype(np.int64)
    is_before = choice < num_distant[:, 0]
    sentence = np.where(is_before, document_first + choice, a_stop + 1 + choice - num_distant[:, 0])
    start = sentences[sentence]
    last = np.where(is_before, a_first - 1, document_stop)
    stop = sentences[np.minimum(np.searchsorted(sentences, start + max_tokens), last)]
    return start, stop - start
