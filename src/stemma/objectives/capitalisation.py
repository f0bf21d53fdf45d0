"""Capitalization prediction: is the word capitalized? (ERNIE 2.0, arXiv:1907.12412, section 4.2.1)

Capitals mark names, so an uncased model learns something about them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from stemma.objectives.base import Requirements
from stemma.objectives.classifiers import TokenClassification
from stemma.registry import register
from stemma.schema.corpus import packing_names
from stemma.schema.objective import AttentionMaskKind, ObjectiveSettings

if TYPE_CHECKING:
    from stemma.corpus.corpus import Corpus
    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG

FIELD = "capitals"
SCAN_TOKENS = 1 << 22  # tokens scanned at once


class CapitalisationSettings(ObjectiveSettings):
    """ERNIE 2.0: is the word capitalized?"""

    kind: Literal["capitalisation"]

    attention_mask: ClassVar[AttentionMaskKind] = "full"

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return packing_names(contiguous=False)


@register("objective", "capitalisation", CapitalisationSettings)
class Capitalisation(TokenClassification):
    settings: CapitalisationSettings

    def requirements(self) -> Requirements:
        return replace(super().requirements(), annotations=frozenset({FIELD}))

    def missing_data(self, corpus: Corpus) -> str | None:
        missing = super().missing_data(corpus)
        if missing:
            return missing
        if not corpus.tokenizer.lowercase:
            return "the tokenizer keeps capitals, so that every token gives the answer away"
        if not any(corpus.values_between(FIELD, start, min(start + SCAN_TOKENS, corpus.num_tokens)).any()
                   for start in range(0, corpus.num_tokens, SCAN_TOKENS)):
            return "the text has no capital letter"
        return None

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        is_text = draft.is_text
        labels = np.zeros(is_text.shape, dtype=np.int64)
        labels[is_text] = draft.corpus.values_at(FIELD, draft.corpus_offsets[is_text])
        self.add_targets(draft, labels)
