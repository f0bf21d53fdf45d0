"""Masked span to span: hide one stretch of a sentence from the encoder and let the decoder write just that stretch
(MASS, arXiv:1905.02450).

The decoder is given nothing but the stretch's own earlier tokens, so what it needs it must find in the encoder. A
stretch of one token is BERT's task; the whole sentence is GPT's, with nothing left to read.
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
    """MASS: hide one span, and write it."""

    kind: Literal["masked_span_to_span"]
    share: Fraction = 0.5  # of the text: a single token makes it BERT's task, all of it GPT's
    mask: Probability = 0.8  # of the hidden: replaced by the mask token
    random: Probability = 0.1  # of the hidden: replaced by another token; the rest stays as it was

    special_tokens = frozenset({"mask"})
    one_decision = (("mask", "random"),)

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.mask + self.random > 1:
            what = f"mask {self.mask:g} and random {self.random:g} add up to more than 1"
            yield (ConflictKey("mask", what), ConflictKey("random", what))


@register("objective", "masked_span_to_span", MaskedSpanToSpanSettings)
class MaskedSpanToSpan(Seq2SeqObjective):
    settings: MaskedSpanToSpanSettings

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """The decoder's places are numbered as the encoder's, so that it knows where in the sentence it writes."""
        hidden = choose_span(draft.is_text, self.settings.share, rng)
        ids = replace_tokens(draft, hidden, self.settings.mask, self.settings.random, rng)
        longest, filling = int(draft.lengths.max()), draft.template.special_ids["padding"]
        places = np.broadcast_to(np.arange(hidden.shape[1]), hidden.shape)
        written = PaddedRows.select(draft.original_ids, hidden,
                                    filling).shift_right(draft.corpus.tokenizer.special_id("mask"), filling)
        # Filling stands at place 0: any that exists.
        spans = PaddedRows(written.input_ids, written.lengths, written.labels, compact_rows(places, hidden, 0))
        read = PaddedRows(ids[:, :longest], draft.lengths, corpus_offsets=draft.corpus_offsets[:, :longest])
        draft.seq2seq_rows = {ENCODER: read, DECODER: spans}


def choose_span(text: np.ndarray, fraction: float, rng: RNG) -> np.ndarray:
    """(rows, length) bool: one stretch of a share of each row's text, at any place of it; at least a token."""
    count = text.sum(1)
    wanted = np.minimum(np.maximum(np.rint(count * fraction), 1), count).astype(np.int64)
    first = (rng.random((len(text), 1))[:, 0] * (count - wanted + 1)).astype(np.int64)
    number = np.cumsum(text, axis=1) - 1  # of each token among its row's text
    chosen: np.ndarray = text & (number >= first[:, None]) & (number < (first + wanted)[:, None])
    return chosen
