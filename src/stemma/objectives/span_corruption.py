"""Span corruption: each masked span becomes one sentinel; the target lists the sentinels with their spans (T5,
arXiv:1910.10683, section 3.1.4, and the released code).

The numbers of masked tokens and spans depend only on the text length, so the raw text length that fills a sequence
after corruption is known in advance. All partitions of the text into spans are equally likely.
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
    """T5: each masked span becomes one sentinel; the target lists the sentinels with their spans."""

    kind: Literal["span_corruption"]
    rate: OpenFraction = 0.15  # masking rate: fraction of tokens in spans
    mean_span: MeanSpan = 3.0  # mean span length in tokens

    special_tokens = frozenset({"sentinel", "end"})

    @property
    def generation(self) -> GenerationCapability | None:
        return GenerationCapability("decoder", gap=GapPrompt("sentinel"))

    @property
    def sentence_scores(self) -> tuple[str, ...]:
        return ("infilling",)

    @property
    def pair_finetuning_keys(self) -> dict[str, Any] | None:
        return {"kind": "translation", "smoothing": 0.0}  # as T5 is fine-tuned


@register("objective", "span_corruption", SpanCorruptionSettings)
class SpanCorruption(Seq2SeqObjective):
    settings: SpanCorruptionSettings

    def raw_text_length(self, length: int, special: int = 1) -> int:
        """Largest text length for which source and target fit the sequence; the target ends with one `end`."""
        def fits(num_tokens: int) -> bool:
            noise, spans = (int(count) for count in self._counts(np.array(num_tokens)))
            return max(num_tokens - noise + spans + special, noise + spans + 1) <= length

        num_tokens = max(length - special, 1)
        while fits(num_tokens + 1):
            num_tokens += 1
        while num_tokens > 1 and not fits(num_tokens):
            num_tokens -= 1
        return num_tokens

    def num_sentinels(self, length: int, special: int = 1) -> int:
        """Every span of a row has its own sentinel."""
        return int(self._counts(np.array(self.raw_text_length(length, special)))[1])

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """Document separators count as text; special tokens of the template stay unchanged."""
        tokenizer, pad_id = draft.corpus.tokenizer, draft.template.special_ids["padding"]
        in_text = _text_extent(draft.is_text)
        rows, width = in_text.shape
        span = np.full(in_text.shape, -1)  # span index of each position
        length = in_text.sum(1)
        noise, spans = self._counts(length)
        span[in_text] = assign_spans(length, noise, spans, width, rng)[np.arange(width) < length[:, None]]
        masked = span >= 0
        is_span_start = masked.copy()
        is_span_start[:, 1:] &= span[:, 1:] != span[:, :-1]
        sentinels = np.array(tokenizer.sentinels, dtype=np.int32)[np.maximum(span, 0)]
        used = np.arange(width) < draft.lengths[:, None]
        source = PaddedRows.select(np.where(is_span_start, sentinels, draft.original_ids),
                                   used & (is_span_start | ~masked), pad_id,
                                   np.where(is_span_start, -1, draft.corpus_offsets))
        # Target: interleave the sentinels (where a span begins) with the masked tokens, and append the end token.
        end = np.full((rows, 1), tokenizer.special_id("end"), dtype=np.int32)
        interleaved = np.stack([sentinels, draft.original_ids], axis=2).reshape(rows, -1)
        keep = np.stack([is_span_start, masked], axis=2).reshape(rows, -1)
        target = PaddedRows.select(np.concatenate([interleaved, end], axis=1),
                                   np.concatenate([keep, np.ones((rows, 1), dtype=bool)], axis=1), pad_id)
        set_seq2seq_rows(draft, source, target)

    def _counts(self, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of masked tokens and of spans for a text length. At least one token is masked and at least one stays,
        unless there is only one."""
        noise = np.maximum(np.rint(length * self.settings.rate), 1)
        noise = np.minimum(noise, np.maximum(length - 1, 0)).astype(np.int64)
        spans = np.maximum(np.rint(noise / self.settings.mean_span), 1)
        return noise, np.minimum(spans, np.minimum(noise, length - noise)).astype(np.int64)


def assign_spans(length: np.ndarray, num_noise_tokens: np.ndarray, num_spans: np.ndarray, width: int,
                 rng: RNG) -> np.ndarray:
    """(rows, width) span index of each token, -1 if it stays. Text and spans alternate, text first; both are
    partitioned at random."""
    unmasked = _random_segments(length - num_noise_tokens, num_spans, width, rng)
    masked = _random_segments(num_noise_tokens, num_spans, width, rng)
    # Segment 2s is the s-th piece of text, 2s + 1 the s-th span; positions beyond the end of a row sort last.
    segment = np.sort(np.concatenate([np.where(unmasked >= 0, 2 * unmasked, 4 * width),
                                      np.where(masked >= 0, 2 * masked + 1, 4 * width)], axis=1), axis=1)[:, :width]
    return np.where((segment % 2 == 1) & (segment < 4 * width), segment // 2, -1)


def _random_segments(items: np.ndarray, segments: np.ndarray, width: int, rng: RNG) -> np.ndarray:
    """(rows, width) segment index of each item, -1 after the last item; no segment is empty, and all partitions are
    equally likely."""
    position = np.arange(width)
    keys = np.where((position > 0) & (position < items[:, None]), rng.random((len(items), width)), 2.0)
    is_start = np.zeros(keys.shape, dtype=bool)
    np.put_along_axis(is_start, np.argsort(keys, axis=1), position < (segments - 1)[:, None], axis=1)
    return np.where(position < items[:, None], np.cumsum(is_start, axis=1), -1)


def _text_extent(is_text: np.ndarray) -> np.ndarray:
    """(rows, length) bool: all positions from the first text token to the last."""
    return (np.cumsum(is_text, axis=1) > 0) & (np.cumsum(is_text[:, ::-1], axis=1)[:, ::-1] > 0)
