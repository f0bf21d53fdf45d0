"""Translation: read a sentence, write the other one (the Transformer's own task, arXiv:1706.03762)."""

from __future__ import annotations

from stemma.corpus.draft import Draft
from stemma.corpus.randomness import Randomness
from stemma.objectives.seq2seq import DecoderTask, source_and_target, whole_text
from stemma.schema.objective import TranslationSettings


class Translation(DecoderTask):
    settings: TranslationSettings

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        """Nothing is hidden: the decoder sees what it has written, never what comes."""
        source_and_target(draft, whole_text(draft), whole_text(draft.second_text()))
