"""Dialogue language model: is this what was said, or was a turn taken from another conversation? (ERNIE 1.0,
arXiv:1904.09223, section 3.3)

The hidden words are guessed by a `masked_lm` of the same packing, which shares the pass; segments say who speaks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from stemma.corpus.dialogue_index import DialogueIndex
from stemma.corpus.packers import fit_turns
from stemma.corpus.subset import CorpusSubset
from stemma.corpus.text_batches import ROLES
from stemma.objectives.base import Requirements
from stemma.objectives.classifiers import RowClassification
from stemma.registry import register
from stemma.schema.base import Probability
from stemma.schema.objective import AttentionMaskKind, ObjectiveSettings

if TYPE_CHECKING:
    from stemma.corpus.corpus import Corpus
    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG


class DialogueLMSettings(ObjectiveSettings):
    """ERNIE 1.0: segments say who speaks; was one of the turns exchanged for another dialogue's?"""

    kind: Literal["dialogue_lm"]
    fake: Probability = 0.5

    rearranges_text = True
    sees: ClassVar[AttentionMaskKind] = "full"

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return ("dialogue",)


@register("objective", "dialogue_lm", DialogueLMSettings)
class DialogueLM(RowClassification):
    settings: DialogueLMSettings
    classes = 2

    def __init__(self, name: str, settings: DialogueLMSettings):
        super().__init__(name, settings)
        self._indexes: list[DialogueIndex] = []  # of the views met so far: training and validation, sorted once each

    def requirements(self) -> Requirements:
        return Requirements(heads=super().requirements().heads, annotations=frozenset({ROLES}))

    def missing_data(self, corpus: Corpus) -> str | None:
        if ROLES in corpus.annotations() and len(CorpusSubset.all_documents(corpus).documents_for("dialogue").document_ranges) < 2:
            return "the corpus has fewer than two dialogues, so no turn can be exchanged for another's"
        return super().missing_data(corpus)

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """Label 1: a turn after the first is another dialogue's, said by the same speaker, so that who speaks when does
        not tell; 0: it is as it was. A turn that stands alone is not asked about."""
        pieces, sentences = draft.spans, np.asarray(draft.corpus.sentence_starts)
        coin, which, where = rng.random((draft.rows, 3)).T
        first = np.searchsorted(pieces.row, np.arange(draft.rows))
        turns = np.bincount(pieces.row, minlength=draft.rows)
        rows = np.flatnonzero((coin < self.settings.fake) & (turns > 1))
        chosen = first[rows] + 1 + (which[rows] * (turns[rows] - 1)).astype(np.int64)
        found = self._dialogue_index(draft.subset).sample_other_dialogue(pieces.start[chosen], where[rows])
        rows, chosen, found = (values[found >= 0] for values in (rows, chosen, found))
        pieces.start = pieces.start.copy()
        pieces.start[chosen] = found
        # Rows are cut anew from whole turns: how much was cut of the others must not tell how long a true turn was.
        pieces.length = sentences[np.searchsorted(sentences, pieces.start, side="right")] - pieces.start
        fit_turns(pieces, draft.template)
        labels = np.where(turns > 1, 0, -1)
        labels[rows] = 1
        draft.add_row_labels(self.name, labels)

    def _dialogue_index(self, subset: CorpusSubset) -> DialogueIndex:
        found = next((turns for turns in self._indexes if turns.subset is subset), None)
        if found is None:
            found = DialogueIndex(subset)
            self._indexes.append(found)
        return found
