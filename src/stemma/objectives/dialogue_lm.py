"""Dialogue language model: detect dialogues in which a turn is replaced by one from another dialogue (ERNIE 1.0,
arXiv:1904.09223, section 3.3).

A `masked_lm` with the same packing shares the forward pass and predicts the masked words. Segment ids are speakers.
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
    """ERNIE 1.0: was one of the turns replaced by one from another dialogue? Segment ids are speakers."""

    kind: Literal["dialogue_lm"]
    fake: Probability = 0.5  # probability that a turn is replaced

    rearranges_text = True
    attention_mask: ClassVar[AttentionMaskKind] = "full"

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return ("dialogue",)


@register("objective", "dialogue_lm", DialogueLMSettings)
class DialogueLM(RowClassification):
    settings: DialogueLMSettings
    classes = 2

    def __init__(self, name: str, settings: DialogueLMSettings):
        super().__init__(name, settings)
        self._indexes: list[DialogueIndex] = []  # of training and validation text, built once each

    def requirements(self) -> Requirements:
        return Requirements(heads=super().requirements().heads, annotations=frozenset({ROLES}))

    def missing_data(self, corpus: Corpus) -> str | None:
        dialogues = CorpusSubset.all_documents(corpus).documents_for("dialogue")
        if ROLES in corpus.annotations() and len(dialogues.document_ranges) < 2:
            return "the corpus has fewer than two dialogues, so no turn can be exchanged for another's"
        return super().missing_data(corpus)

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """Label 1: a turn after the first is replaced by one of another dialogue and the same speaker, so that the
        order of speakers does not reveal the label. Label 0: unchanged. A dialogue of one turn gets no label."""
        spans, sentences = draft.spans, np.asarray(draft.corpus.sentence_starts)
        uniform, turn_fraction, other_fraction = rng.random((draft.rows, 3)).T
        first = np.searchsorted(spans.row, np.arange(draft.rows))
        turns = np.bincount(spans.row, minlength=draft.rows)
        rows = np.flatnonzero((uniform < self.settings.fake) & (turns > 1))
        replaced = first[rows] + 1 + (turn_fraction[rows] * (turns[rows] - 1)).astype(np.int64)
        starts = self._dialogue_index(draft.subset).sample_other_dialogue(spans.start[replaced], other_fraction[rows])
        rows, replaced, starts = (values[starts >= 0] for values in (rows, replaced, starts))
        spans.start = spans.start.copy()
        spans.start[replaced] = starts
        # Truncate again from whole turns: the cut of the other turns must not reveal the length of the original.
        spans.length = sentences[np.searchsorted(sentences, spans.start, side="right")] - spans.start
        fit_turns(spans, draft.template)
        labels = np.where(turns > 1, 0, -1)
        labels[rows] = 1
        draft.add_row_labels(self.name, labels)

    def _dialogue_index(self, subset: CorpusSubset) -> DialogueIndex:
        index = next((index for index in self._indexes if index.subset is subset), None)
        if index is None:
            index = DialogueIndex(subset)
            self._indexes.append(index)
        return index
