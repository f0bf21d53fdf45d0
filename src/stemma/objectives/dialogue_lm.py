"""Dialogue language model: is this what was said, or was a turn taken from another conversation? (ERNIE 1.0,
arXiv:1904.09223, section 3.3)

The hidden words are guessed by a `masked_lm` of the same packing, which shares the pass; segments say who speaks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from stemma.corpus.batches import ROLES
from stemma.corpus.packers import fit_turns
from stemma.corpus.turns import Turns
from stemma.corpus.view import View
from stemma.objectives.base import Needs
from stemma.objectives.classifiers import RowClassifier
from stemma.registry import register
from stemma.schema.base import Probability
from stemma.schema.task import ObjectiveSettings, Sees

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.randomness import Randomness
    from stemma.corpus.shards import Corpus


class DialogueLMSettings(ObjectiveSettings):
    """ERNIE 1.0: segments say who speaks; was one of the turns exchanged for another dialogue's?"""

    kind: Literal["dialogue_lm"]
    fake: Probability = 0.5

    rearranges = True
    sees: ClassVar[Sees] = "full"

    @property
    def needs_packing(self) -> tuple[str, ...]:
        return ("dialogue",)


@register("objective", "dialogue_lm", DialogueLMSettings)
class DialogueLM(RowClassifier):
    settings: DialogueLMSettings
    classes = 2

    def __init__(self, name: str, settings: DialogueLMSettings):
        super().__init__(name, settings)
        self._known: list[Turns] = []  # of the views met so far: training and validation, sorted once each

    def needs(self) -> Needs:
        return Needs(heads=super().needs().heads, fields=frozenset({ROLES}))

    def lacks(self, corpus: Corpus) -> str | None:
        if ROLES in corpus.sides() and len(View.whole(corpus).read_by("dialogue").documents) < 2:
            return "the corpus has fewer than two dialogues, so no turn can be exchanged for another's"
        return super().lacks(corpus)

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        """Label 1: a turn after the first is another dialogue's, said by the same speaker, so that who speaks when does
        not tell; 0: it is as it was. A turn that stands alone is not asked about."""
        pieces, sentences = draft.pieces, np.asarray(draft.corpus.sentences)
        coin, which, where = rng.random((draft.rows, 3)).T
        first = np.searchsorted(pieces.row, np.arange(draft.rows))
        turns = np.bincount(pieces.row, minlength=draft.rows)
        rows = np.flatnonzero((coin < self.settings.fake) & (turns > 1))
        chosen = first[rows] + 1 + (which[rows] * (turns[rows] - 1)).astype(np.int64)
        found = self._turns(draft.view).elsewhere(pieces.start[chosen], where[rows])
        rows, chosen, found = (values[found >= 0] for values in (rows, chosen, found))
        pieces.start = pieces.start.copy()
        pieces.start[chosen] = found
        # Rows are cut anew from whole turns: how much was cut of the others must not tell how long a true turn was.
        pieces.length = sentences[np.searchsorted(sentences, pieces.start, side="right")] - pieces.start
        fit_turns(pieces, draft.layout)
        labels = np.where(turns > 1, 0, -1)
        labels[rows] = 1
        draft.label(self.name, labels)

    def _turns(self, view: View) -> Turns:
        found = next((turns for turns in self._known if turns.view is view), None)
        if found is None:
            found = Turns(view)
            self._known.append(found)
        return found
