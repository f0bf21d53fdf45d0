"""Capitalisation: was the word written with a capital? Names are; a vocabulary without capitals can still learn what
they tell. (ERNIE 2.0, arXiv:1907.12412, section 4.2.1)"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from stemma.objectives.base import Needs
from stemma.objectives.classifiers import PlaceClassifier
from stemma.registry import register
from stemma.schema.corpus import packings
from stemma.schema.task import ObjectiveSettings, Sees

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.randomness import Randomness
    from stemma.corpus.shards import Corpus

FIELD = "capitals"
AT_ONCE = 1 << 22  # tokens that are looked through


class CapitalisationSettings(ObjectiveSettings):
    """ERNIE 2.0: was the word written with a capital?"""

    kind: Literal["capitalisation"]

    sees: ClassVar[Sees] = "full"

    @property
    def needs_packing(self) -> tuple[str, ...]:
        return packings(contiguous=False)


@register("objective", "capitalisation", CapitalisationSettings)
class Capitalisation(PlaceClassifier):
    settings: CapitalisationSettings

    def needs(self) -> Needs:
        return replace(super().needs(), fields=frozenset({FIELD}))

    def lacks(self, corpus: Corpus) -> str | None:
        missing = super().lacks(corpus)
        if missing:
            return missing
        if not corpus.tokenizer.lowercase:
            return "the tokenizer keeps capitals, so that every token tells the answer itself"
        if not any(corpus.slice(FIELD, start, min(start + AT_ONCE, corpus.tokens)).any()
                   for start in range(0, corpus.tokens, AT_ONCE)):
            return "the text has no capital letter"
        return None

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        text = draft.text
        labels = np.zeros(text.shape, dtype=np.int64)
        labels[text] = draft.corpus.take(FIELD, draft.source[text])
        self.ask(draft, labels)
