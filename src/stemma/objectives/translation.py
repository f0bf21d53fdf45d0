"""Translation: predict the target sentence from the source (the Transformer, arXiv:1706.03762)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from stemma.objectives.base import LM_HEAD, Requirements
from stemma.objectives.seq2seq import Seq2SeqObjective, Seq2SeqObjectiveSettings, set_seq2seq_rows, unchanged_rows
from stemma.registry import register
from stemma.schema.base import BelowOne

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG


class TranslationSettings(Seq2SeqObjectiveSettings):
    kind: Literal["translation"]
    smoothing: BelowOne = 0.1
    bias: bool | None = None  # of the output layer: one number for each token; None = no

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return ("parallel",)

    @property
    def pair_finetuning_keys(self) -> dict[str, Any] | None:
        return {"kind": "translation", "smoothing": self.smoothing}


@register("objective", "translation", TranslationSettings)
class TranslationObjective(Seq2SeqObjective):
    settings: TranslationSettings

    def requirements(self) -> Requirements:
        from stemma.network.heads import LMHeadSpec

        return replace(super().requirements(),
                       heads={LM_HEAD: LMHeadSpec(transform=False, bias=bool(self.settings.bias))})

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """No token is masked: the attention mask of the decoder is causal."""
        set_seq2seq_rows(draft, unchanged_rows(draft), unchanged_rows(draft.segment_b_draft()))
