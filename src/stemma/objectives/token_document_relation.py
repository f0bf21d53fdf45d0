"""Token-document relation: does this token occur elsewhere in the same document? What does is common, or what the
document is about. (ERNIE 2.0, arXiv:1907.12412, section 4.2.1)"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from stemma.objectives.classifiers import PlaceClassifier
from stemma.registry import register
from stemma.schema.base import Count
from stemma.schema.corpus import packings
from stemma.schema.task import ObjectiveSettings, Sees

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.randomness import Randomness


class TokenDocumentRelationSettings(ObjectiveSettings):
    """ERNIE 2.0: does this token occur elsewhere in the same document?"""

    kind: Literal["token_document_relation"]
    reach: Count = 8192  # tokens of the document, around the row, that are looked through

    sees: ClassVar[Sees] = "full"

    @property
    def needs_packing(self) -> tuple[str, ...]:
        return packings(one_document=True)


@register("objective", "token_document_relation", TokenDocumentRelationSettings)
class TokenDocumentRelation(PlaceClassifier):
    settings: TokenDocumentRelationSettings

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        """Rows are of one document each. One step of Python a row; the table of tokens is cleared, never made anew."""
        corpus, documents = draft.corpus, draft.view.documents
        pieces = draft.pieces
        first = np.full(draft.rows, corpus.tokens)
        last = np.zeros(draft.rows, np.int64)
        np.minimum.at(first, pieces.row, pieces.start)
        np.maximum.at(last, pieces.row, pieces.start + pieces.length)
        begins, ends = documents[np.searchsorted(documents[:, 0], first, side="right") - 1].T
        # as far before the row as behind it, but what one side cannot use the other may
        reach, size = self.settings.reach, last - first
        low = np.maximum(begins, np.minimum(first - reach // 2, ends - size - reach))
        high = np.minimum(ends, low + reach + size)
        original, seen = draft.original, np.zeros(corpus.tokenizer.vocab_size, dtype=bool)
        labels = np.zeros(original.shape, dtype=np.int64)
        for row in range(draft.rows):
            around = np.concatenate([corpus.slice("tokens", low[row], first[row]),
                                     corpus.slice("tokens", last[row], high[row])])
            seen[around] = True
            labels[row] = seen[original[row]]
            seen[around] = False
        self.ask(draft, labels)
