"""Information-retrieval relevance: classify query-title pairs by user behaviour in a search engine (ERNIE 2.0,
arXiv:1907.12412, section 4.2.3: clicked, shown, or neither)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from stemma.corpus.text_batches import RELEVANCE
from stemma.errors import UserError
from stemma.objectives.base import Requirements
from stemma.objectives.classifiers import RowClassification
from stemma.registry import register
from stemma.schema import base
from stemma.schema.objective import AttentionMaskKind, ObjectiveSettings

if TYPE_CHECKING:
    from stemma.corpus.corpus import Corpus
    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG


class IRRelevanceSettings(ObjectiveSettings):
    """ERNIE 2.0: relevance of a title for a query: clicked, shown, or neither."""

    kind: Literal["ir_relevance"]
    classes: Annotated[int, base.constraint(lambda n: n >= 2, "must be 2 or more")] = 3

    attention_mask: ClassVar[AttentionMaskKind] = "full"
    reads_relevance = True

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return ("parallel",)


@register("objective", "ir_relevance", IRRelevanceSettings)
class IRRelevance(RowClassification):
    settings: IRRelevanceSettings

    def __init__(self, name: str, settings: IRRelevanceSettings):
        super().__init__(name, settings)
        self.classes = settings.classes

    def requirements(self) -> Requirements:
        return Requirements(heads=super().requirements().heads, annotations=frozenset({RELEVANCE}))

    def missing_data(self, corpus: Corpus) -> str | None:
        if RELEVANCE in corpus.annotations():
            classes = int(corpus.values_at(RELEVANCE, corpus.document_starts[:-1]).max(initial=0))
            if classes > self.classes:
                raise UserError(f"the relevance labels of {corpus.path} go up to {classes - 1}, and "
                                f"objective.{self.name} has {self.classes} classes; set "
                                f"objective.{self.name}.classes={classes}.")
        return super().missing_data(corpus)

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        spans = draft.spans
        first = np.searchsorted(spans.row, np.arange(draft.rows))
        draft.add_row_labels(self.name, draft.corpus.values_at(RELEVANCE, spans.start[first]).astype(np.int64) - 1)
