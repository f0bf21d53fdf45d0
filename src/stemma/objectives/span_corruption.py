"""Span corruption: each hidden span becomes one sentinel, and the target says what every sentinel stands for (T5,
arXiv:1910.10683, section 3.1.4, and the released code).

How many tokens and spans are hidden is fixed by the length of the text alone, so that it is known beforehand how much
text fills a window once it is shortened. All ways of parting the text so are equally likely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stemma.corpus.seq2seq_rows import PaddedRows
from stemma.objectives.seq2seq import Seq2SeqObjective, Seq2SeqObjectiveSettings, set_seq2seq_rows
from stemma.registry import register
from stemma.schema.base import OpenFraction
from stemma.schema.objective import GapPrompt, GenerationCapability, MeanSpan

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG


class SpanCorruptionSettings(Seq2SeqObjectiveSettings):
    """T5: every hidden span becomes one sentinel, and the target says what each sentinel stands for."""

    kind: Literal["span_corruption"]
    rate: OpenFraction = 0.15  # share of the tokens that are hidden
    mean_span: MeanSpan = 3.0

    special_tokens = frozenset({"sentinel", "end"})

    @property
    def generation(self) -> GenerationCapability | None:
        return GenerationCapability("decoder", gap=GapPrompt("sentinel"))

    @property
    def pair_finetuning_keys(self) -> dict[str, Any] | None:
        return {"kind": "translation", "smoothing": 0.0}  # as T5 is fine-tuned


@register("objective", "span_corruption", SpanCorruptionSettings)
class SpanCorruption(Seq2SeqObjective):
    settings: SpanCorruptionSettings

    def raw_text_length(self, length: int, special: int = 1) -> int:
        """The most text of which neither side is longer than the window; the target always has one `end`."""
        def fits(text: int) -> bool:
            noise, spans = (int(count) for count in self._counts(np.array(text)))
            return max(text - noise + spans + special, noise + spans + 1) <= length

        text = max(length - special, 1)
        while fits(text + 1):
            text += 1
        while text > 1 and not fits(text):
            text -= 1
        return text

    def num_sentinels(self, length: int, special: int = 1) -> int:
        """Every span of a row has a sentinel of its own."""
        return int(self._counts(np.array(self.raw_text_length(length, special)))[1])

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """Tokens that part documents are text like any other; the template's stay where they are."""
        tokenizer, filling = draft.corpus.tokenizer, draft.template.special_ids["padding"]
        inner = _text_extent(draft.is_text)
        span = np.full(inner.shape, -1)  # the number of the span that a place belongs to
        length = inner.sum(1)
        noise, spans = self._counts(length)
        span[inner] = assign_spans(length, noise, spans, inner.shape[1], rng)[np.arange(inner.shape[1])
                                                                              < length[:, None]]
        hidden = span >= 0
        begins = hidden.copy()
        begins[:, 1:] &= span[:, 1:] != span[:, :-1]
        sentinels = np.array(tokenizer.sentinels, dtype=np.int32)[np.maximum(span, 0)]
        used = np.arange(inner.shape[1]) < draft.lengths[:, None]
        source = PaddedRows.select(np.where(begins, sentinels, draft.original_ids), used & (begins | ~hidden), filling,
                           np.where(begins, -1, draft.corpus_offsets))
        # Before each place its sentinel, if a span begins there; behind the last one the end.
        rows = len(inner)
        end = np.full((rows, 1), tokenizer.special_id("end"), dtype=np.int32)
        written = np.stack([sentinels, draft.original_ids], axis=2).reshape(rows, -1)
        kept = np.stack([begins, hidden], axis=2).reshape(rows, -1)
        target = PaddedRows.select(np.concatenate([written, end], axis=1),
                           np.concatenate([kept, np.ones((rows, 1), dtype=bool)], axis=1), filling)
        set_seq2seq_rows(draft, source, target)

    def _counts(self, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How many tokens of a text are hidden, and in how many spans. Something is hidden and something is left,
        unless there is but one token."""
        noise = np.maximum(np.rint(length * self.settings.rate), 1)
        noise = np.minimum(noise, np.maximum(length - 1, 0)).astype(np.int64)
        spans = np.maximum(np.rint(noise / self.settings.mean_span), 1)
        return noise, np.minimum(spans, np.minimum(noise, length - noise)).astype(np.int64)


def assign_spans(length: np.ndarray, num_noise_tokens: np.ndarray, num_spans: np.ndarray, width: int,
                 rng: RNG) -> np.ndarray:
    """(rows, width): -1 where a token is left, otherwise the number of its span. Text and spans take turns, text first;
    both are parted at random."""
    kept = _random_segments(length - num_noise_tokens, num_spans, width, rng)
    hidden = _random_segments(num_noise_tokens, num_spans, width, rng)
    # Turn number 2s is the s-th stretch of text, 2s + 1 the s-th span; what is beyond a row's end sorts last.
    turn = np.sort(np.concatenate([np.where(kept >= 0, 2 * kept, 4 * width),
                                   np.where(hidden >= 0, 2 * hidden + 1, 4 * width)], axis=1), axis=1)[:, :width]
    return np.where((turn % 2 == 1) & (turn < 4 * width), turn // 2, -1)


def _random_segments(items: np.ndarray, segments: np.ndarray, width: int, rng: RNG) -> np.ndarray:
    """(rows, width): the segment that each of a row's items belongs to, -1 beyond them; no segment is empty, and all
    partitions are equally likely."""
    place = np.arange(width)
    keys = np.where((place > 0) & (place < items[:, None]), rng.random((len(items), width)), 2.0)
    begins = np.zeros(keys.shape, dtype=bool)
    np.put_along_axis(begins, np.argsort(keys, axis=1), place < (segments - 1)[:, None], axis=1)
    return np.where(place < items[:, None], np.cumsum(begins, axis=1), -1)


def _text_extent(text: np.ndarray) -> np.ndarray:
    """(rows, length) bool: all places from the first token of the text to the last."""
    return (np.cumsum(text, axis=1) > 0) & (np.cumsum(text[:, ::-1], axis=1)[:, ::-1] > 0)
