"""Masked sequence-to-sequence: mask one span of a sentence in the encoder; the decoder predicts this span
(MASS, arXiv:1905.02450).

The decoder input holds only the earlier tokens of the span, so everything else must come from the encoder. A span of
one token is like BERT's objective, the whole sentence like GPT's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from stemma.corpus.seq2seq_rows import DECODER, ENCODER, PaddedRows, compact_rows
from stemma.objectives.masking import replace_tokens
from stemma.objectives.seq2seq import Seq2SeqObjective, Seq2SeqObjectiveSettings
from stemma.registry import register
from stemma.schema.base import Conflict, ConflictKey, Probability
from stemma.schema.objective import Fraction

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG


class MaskedSpanToSpanSettings(Seq2SeqObjectiveSettings):
    """MASS: mask one span in the encoder, predict it in the decoder."""

    kind: Literal["masked_span_to_span"]
    share: Fraction = 0.5  # fraction of the text in the span
    mask: Probability = 0.8  # of the span: replaced by the mask token
    random: Probability = 0.1  # of the span: replaced by a random token; the rest stays unchanged

    special_tokens = frozenset({"mask"})
    one_decision = (("mask", "random"),)

    @property
    def sentence_scores(self) -> tuple[str, ...]:
        return ("masked_span",)

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.mask + self.random > 1:
            problem = f"mask {self.mask:g} and random {self.random:g} add up to more than 1"
            yield (ConflictKey("mask", problem), ConflictKey("random", problem))


@register("objective", "masked_span_to_span", MaskedSpanToSpanSettings)
class MaskedSpanToSpan(Seq2SeqObjective):
    settings: MaskedSpanToSpanSettings

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """The decoder uses the position ids of the encoder, so it has the position of the span in the sentence."""
        selected = choose_span(draft.is_text, self.settings.share, rng)
        ids = replace_tokens(draft, selected, self.settings.mask, self.settings.random, rng)
        longest, pad_id = int(draft.lengths.max()), draft.template.special_ids["padding"]
        positions = np.broadcast_to(np.arange(selected.shape[1]), selected.shape)
        mask_id = draft.corpus.tokenizer.special_id("mask")
        target = PaddedRows.select(draft.original_ids, selected, pad_id).shift_right(mask_id, pad_id)
        # Padding gets position 0, which is always valid.
        spans = PaddedRows(target.input_ids, target.lengths, target.labels, compact_rows(positions, selected, 0))
        source = PaddedRows(ids[:, :longest], draft.lengths, corpus_offsets=draft.corpus_offsets[:, :longest])
        draft.seq2seq_rows = {ENCODER: source, DECODER: spans}


def choose_span(is_text: np.ndarray, fraction: float, rng: RNG) -> np.ndarray:
    """(rows, length) bool: one span at a random position, `fraction` of the text of its row, at least one token."""
    count = is_text.sum(1)
    span_length = np.minimum(np.maximum(np.rint(count * fraction), 1), count).astype(np.int64)
    first = (rng.random((len(is_text), 1))[:, 0] * (count - span_length + 1)).astype(np.int64)
    index = np.cumsum(is_text, axis=1) - 1  # of each token among the text of its row
    selected: np.ndarray = is_text & (index >= first[:, None]) & (index < (first + span_length)[:, None])
    return selected
