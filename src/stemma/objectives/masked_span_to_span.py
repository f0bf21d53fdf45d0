"""Masked span to span: hide one stretch of a sentence from the encoder and let the decoder write just that stretch
(MASS, arXiv:1905.02450).

The decoder is given nothing but the stretch's own earlier tokens, so what it needs it must find in the encoder. A
stretch of one token is BERT's task; the whole sentence is GPT's, with nothing left to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from stemma.corpus.sides import DECODER, ENCODER, Side, closed
from stemma.objectives.masking import replaced
from stemma.objectives.seq2seq import DecoderTask, DecoderTaskSettings
from stemma.registry import register
from stemma.schema.base import Blame, Conflict, Probability
from stemma.schema.task import Part

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.randomness import Randomness


class SpanToSpanSettings(DecoderTaskSettings):
    """MASS: hide one span, and write it."""

    kind: Literal["masked_span_to_span"]
    share: Part = 0.5  # of the text: a single token makes it BERT's task, all of it GPT's
    mask: Probability = 0.8  # of the hidden: replaced by the mask token
    random: Probability = 0.1  # of the hidden: replaced by another token; the rest stays as it was

    roles = frozenset({"mask"})
    one_decision = (("mask", "random"),)

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.mask + self.random > 1:
            what = f"mask {self.mask:g} and random {self.random:g} add up to more than 1"
            yield (Blame("mask", what), Blame("random", what))


@register("objective", "masked_span_to_span", SpanToSpanSettings)
class SpanToSpan(DecoderTask):
    settings: SpanToSpanSettings

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        """The decoder's places are numbered as the encoder's, so that it knows where in the sentence it writes."""
        hidden = choose_span(draft.text, self.settings.share, rng)
        ids = replaced(draft, hidden, self.settings.mask, self.settings.random, rng)
        longest, filling = int(draft.lengths.max()), draft.layout.roles["padding"]
        places = np.broadcast_to(np.arange(hidden.shape[1]), hidden.shape)
        written = Side.kept(draft.original, hidden, filling).written(draft.corpus.tokenizer.role("mask"), filling)
        # Filling stands at place 0: any that exists.
        spans = Side(written.ids, written.lengths, written.labels, closed(places, hidden, 0))
        read = Side(ids[:, :longest], draft.lengths, source=draft.source[:, :longest])
        draft.sides = {ENCODER: read, DECODER: spans}


def choose_span(text: np.ndarray, share: float, rng: Randomness) -> np.ndarray:
    """(rows, length) bool: one stretch of a share of each row's text, at any place of it; at least a token."""
    count = text.sum(1)
    wanted = np.minimum(np.maximum(np.rint(count * share), 1), count).astype(np.int64)
    first = (rng.random((len(text), 1))[:, 0] * (count - wanted + 1)).astype(np.int64)
    number = np.cumsum(text, axis=1) - 1  # of each token among its row's text
    chosen: np.ndarray = text & (number >= first[:, None]) & (number < (first + wanted)[:, None])
    return chosen
