"""Information retrieval relevance: how well does a title answer a query, by what people did when a search engine showed
it? (ERNIE 2.0, arXiv:1907.12412, section 4.2.3: clicked often, shown, or neither)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from stemma.corpus.batches import RELEVANCE
from stemma.errors import UserError
from stemma.objectives.base import Needs
from stemma.objectives.classifiers import RowClassifier
from stemma.registry import register
from stemma.schema import base
from stemma.schema.task import ObjectiveSettings, Sees

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.randomness import Randomness
    from stemma.corpus.shards import Corpus


class IRRelevanceSettings(ObjectiveSettings):
    """ERNIE 2.0: how well does a title answer a query: clicked, shown, or neither?"""

    kind: Literal["ir_relevance"]
    classes: Annotated[int, base.limit(lambda n: n >= 2, "must be 2 or more")] = 3

    sees: ClassVar[Sees] = "full"
    reads_relevance = True

    @property
    def needs_packing(self) -> tuple[str, ...]:
        return ("parallel",)


@register("objective", "ir_relevance", IRRelevanceSettings)
class IRRelevance(RowClassifier):
    settings: IRRelevanceSettings

    def __init__(self, name: str, settings: IRRelevanceSettings):
        super().__init__(name, settings)
        self.classes = settings.classes

    def needs(self) -> Needs:
        return Needs(heads=super().needs().heads, fields=frozenset({RELEVANCE}))

    def lacks(self, corpus: Corpus) -> str | None:
        if RELEVANCE in corpus.sides():
            found = int(corpus.take(RELEVANCE, corpus.documents[:-1]).max(initial=0))
            if found > self.classes:
                raise UserError(f"the relevance labels of {corpus.path} go up to {found - 1}, and "
                                f"objective.{self.name} has {self.classes} classes; set "
                                f"objective.{self.name}.classes={found}.")
        return super().lacks(corpus)

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        pieces = draft.pieces
        first = np.searchsorted(pieces.row, np.arange(draft.rows))
        draft.label(self.name, draft.corpus.take(RELEVANCE, pieces.start[first]).astype(np.int64) - 1)
