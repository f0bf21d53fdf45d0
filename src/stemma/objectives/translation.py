"""Translation: read a sentence, write the other one (the Transformer's own task, arXiv:1706.03762)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from stemma.objectives.seq2seq import DecoderTask, DecoderTaskSettings, source_and_target, whole_text
from stemma.registry import register
from stemma.schema.base import BelowOne

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.randomness import Randomness


class TranslationSettings(DecoderTaskSettings):
    kind: Literal["translation"]
    smoothing: BelowOne = 0.1

    @property
    def needs_packing(self) -> tuple[str, ...]:
        return ("parallel",)

    @property
    def for_pairs(self) -> dict[str, Any] | None:
        return {"kind": "translation", "smoothing": self.smoothing}


@register("objective", "translation", TranslationSettings)
class Translation(DecoderTask):
    settings: TranslationSettings

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        """Nothing is hidden: the decoder sees what it has written, never what comes."""
        source_and_target(draft, whole_text(draft), whole_text(draft.second_text()))
