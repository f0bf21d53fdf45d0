"""Text from another document, to stand where a row's second half was."""

from __future__ import annotations

import numpy as np

from stemma.corpus.draft import Draft


def sample_other_document(draft: Draft, rows: np.ndarray, max_tokens: np.ndarray, uniform: np.ndarray,
                          offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(start, length) of whole sentences that fill `room` tokens, one stretch for each of these rows: from any document
    of the view but the one that the row begins in, from any sentence on; `where` and `offset` are uniform numbers. A
    view of one document has no other."""
    sentences = draft.corpus.sentence_starts
    begins, ends = draft.subset.document_ranges.T
    own = np.searchsorted(begins, segment_a_start(draft)[rows], side="right") - 1
    document = (uniform * max(1, len(begins) - 1)).astype(np.int64)
    if len(begins) > 1:
        document += document >= own
    first = np.searchsorted(sentences, begins[document])
    last = np.searchsorted(sentences, ends[document])
    start = sentences[first + (offset * (last - first)).astype(np.int64)]
    stop = sentences[np.minimum(np.searchsorted(sentences, start + max_tokens), last)]
    return start, stop - start


def segment_a_start(draft: Draft) -> np.ndarray:
    """(rows,) where A begins in the corpus."""
    start = np.zeros(draft.rows, dtype=np.int64)
    first = draft.spans.part == 0
    start[draft.spans.row[first]] = draft.spans.start[first]
    return start
