"""Token-document relation: does this token occur elsewhere in the same document? (ERNIE 2.0, arXiv:1907.12412,
section 4.2.1) Such tokens are common, or keywords of the document."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from stemma.objectives.classifiers import TokenClassification
from stemma.registry import register
from stemma.schema.base import Count
from stemma.schema.corpus import packing_names
from stemma.schema.objective import AttentionMaskKind, ObjectiveSettings

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG


class TokenDocumentRelationSettings(ObjectiveSettings):
    """ERNIE 2.0: does this token occur elsewhere in the same document?"""

    kind: Literal["token_document_relation"]
    reach: Count = 8192  # tokens of the document around the row to search

    attention_mask: ClassVar[AttentionMaskKind] = "full"

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return packing_names(one_document=True)


@register("objective", "token_document_relation", TokenDocumentRelationSettings)
class TokenDocumentRelation(TokenClassification):
    settings: TokenDocumentRelationSettings

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """Each row is from one document. The loop over rows reuses one lookup array of vocabulary size."""
        corpus, documents = draft.corpus, draft.subset.document_ranges
        spans = draft.spans
        first = np.full(draft.rows, corpus.num_tokens)
        last = np.zeros(draft.rows, np.int64)
        np.minimum.at(first, spans.row, spans.start)
        np.maximum.at(last, spans.row, spans.start + spans.length)
        document_start, document_stop = documents[np.searchsorted(documents[:, 0], first, side="right") - 1].T
        # Search equally far before and after the row; at the edge of a document the other side gets the rest.
        reach, size = self.settings.reach, last - first
        low = np.maximum(document_start, np.minimum(first - reach // 2, document_stop - size - reach))
        high = np.minimum(document_stop, low + reach + size)
        original, is_nearby = draft.original_ids, np.zeros(corpus.tokenizer.vocab_size, dtype=bool)
        labels = np.zeros(original.shape, dtype=np.int64)
        for row in range(draft.rows):
            around = np.concatenate([corpus.values_between("tokens", low[row], first[row]),
                                     corpus.values_between("tokens", last[row], high[row])])
            is_nearby[around] = True
            labels[row] = is_nearby[original[row]]
            is_nearby[around] = False
        self.add_targets(draft, labels)
