"""Base of encoder-decoder objectives: the decoder predicts each target token from the source and the target tokens
before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from stemma.corpus.row_template import DECODER_START
from stemma.corpus.seq2seq_rows import DECODER, ENCODER, PaddedRows
from stemma.objectives.base import LM_HEAD, Objective, Requirements
from stemma.schema.base import BelowOne
from stemma.schema.corpus import single_text_packings
from stemma.schema.objective import AttentionMaskKind, GenerationCapability, ObjectiveSettings

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.network.inputs_outputs import NetworkOutput
    from stemma.network.network import Network
    from stemma.objectives.batch import Batch


class Seq2SeqObjectiveSettings(ObjectiveSettings):
    """The encoder reads the source, the decoder predicts the target token by token."""

    smoothing: BelowOne = 0.0  # label smoothing

    attention_mask: ClassVar[AttentionMaskKind] = "full"  # attention mask of the encoder
    needs_decoder = True

    @property
    def generation(self) -> GenerationCapability | None:
        return GenerationCapability("decoder")

    @property
    def pair_finetuning_keys(self) -> dict[str, Any] | None:
        """Pairs are learned by `translation`, whatever the pre-training objective."""
        return {"kind": "translation"}

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return single_text_packings()


class Seq2SeqObjective(Objective):
    predicts_tokens = True
    predicts_next = True

    def requirements(self) -> Requirements:
        from stemma.network.heads import LMHeadSpec

        return Requirements(special_tokens=self.settings.special_tokens,
                            heads={LM_HEAD: LMHeadSpec(transform=False, bias=False)})

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy with label smoothing in training; validation has none, so that its loss is comparable."""
        target = batch.token_targets[LM_HEAD]
        hidden = output[DECODER].flatten(0, 1).index_select(0, target.index)  # (N, width): without padding
        smoothing = 0.0 if batch.held_out else self.settings.smoothing
        return {self.name: network.head(LM_HEAD).loss(hidden, target.labels, target.denominator, smoothing)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: float(-unigram[batch.token_targets[LM_HEAD].labels.cpu().numpy()].mean())}


def set_seq2seq_rows(draft: Draft, source: PaddedRows, target: PaddedRows) -> None:
    """Set the encoder rows, and the decoder rows shifted right after the start token."""
    roles = draft.template.special_ids
    draft.seq2seq_rows = {ENCODER: source, DECODER: target.shift_right(roles[DECODER_START], roles["padding"])}


def unchanged_rows(draft: Draft) -> PaddedRows:
    """The rows of a draft, unchanged."""
    longest = int(draft.lengths.max())
    return PaddedRows(draft.input_ids[:, :longest].astype(np.int32), draft.lengths,
                      corpus_offsets=draft.corpus_offsets[:, :longest])
