"""Negative sampling: text from another document as segment B."""

from __future__ import annotations

import numpy as np

from stemma.corpus.draft import Draft


def sample_other_document(draft: Draft, rows: np.ndarray, max_tokens: np.ndarray, uniform: np.ndarray,
                          offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(start, length) of whole sentences of about `max_tokens` tokens for each of these rows, from a random document
    other than that of A (unless there is only one) and a random sentence on. `uniform` and `offset` are uniform samples
    that choose the document and the sentence."""
    sentences = draft.corpus.sentence_starts
    document_starts, document_stops = draft.subset.document_ranges.T
    own_document = np.searchsorted(document_starts, segment_a_start(draft)[rows], side="right") - 1
    document = (uniform * max(1, len(document_starts) - 1)).astype(np.int64)
    if len(document_starts) > 1:
        document += document >= own_document
    first = np.searchsorted(sentences, document_starts[document])
    last = np.searchsorted(sentences, document_stops[document])
    start = sentences[first + (offset * (last - first)).astype(np.int64)]
    stop = sentences[np.minimum(np.searchsorted(sentences, start + max_tokens), last)]
    return start, stop - start


def segment_a_start(draft: Draft) -> np.ndarray:
    """(rows,) corpus offset of the start of A."""
    start = np.zeros(draft.rows, dtype=np.int64)
    first = draft.spans.part == 0
    start[draft.spans.row[first]] = draft.spans.start[first]
    return start
