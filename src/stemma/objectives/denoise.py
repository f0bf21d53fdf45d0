"""Denoising: corrupt a text, and let the decoder reconstruct the original (BART, arXiv:1910.13461).

The decoder generates the whole text, so the noise may also change its length. The noise functions apply in this order:
sentence permutation, text infilling, token masking and deletion, document rotation. Special tokens of the template stay
unchanged. Infilling, masking and deletion select disjoint tokens, so that every fraction is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from stemma.corpus.seq2seq_rows import PaddedRows
from stemma.objectives.masking import stochastic_round
from stemma.objectives.seq2seq import Seq2SeqObjective, Seq2SeqObjectiveSettings, set_seq2seq_rows, unchanged_rows
from stemma.registry import register
from stemma.schema.base import BelowOne, Conflict, ConflictKey, Probability
from stemma.schema.objective import GapPrompt, GenerationCapability, MeanSpan

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG


class DenoiseSettings(Seq2SeqObjectiveSettings):
    """BART: corrupt a text by one or several noise functions, in this order, and reconstruct the original."""

    kind: Literal["denoise"]
    permute: Probability = 1.0  # probability that the sentences of a row are shuffled
    infill: BelowOne = 0.3  # fraction of tokens in spans, each span replaced by one mask token
    mean_span: MeanSpan = 3.0  # mean of the Poisson span lengths; a span of length 0 inserts a mask token
    mask: BelowOne = 0.0  # fraction of tokens replaced by a mask token each
    delete: BelowOne = 0.0  # fraction of tokens deleted
    rotate: Probability = 0.0  # probability that a row is rotated to start at a random token

    special_tokens = frozenset({"mask"})

    @property
    def generation(self) -> GenerationCapability | None:
        return GenerationCapability("decoder", gap=GapPrompt("mask", repeats_text=True) if self.infill else None)

    @property
    def sentence_scores(self) -> tuple[str, ...]:
        return ("infilling",) if self.infill else ()

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        names = ("infill", "mask", "delete")
        if sum(getattr(self, name) for name in names) >= 1:
            problem = f"infill {self.infill:g}, mask {self.mask:g} and delete {self.delete:g} leave nothing of the text"
            yield tuple(ConflictKey(name, problem) for name in names)
        if not any(getattr(self, name) for name in (*names, "permute", "rotate")):
            problem = "nothing is corrupted, so there is nothing to learn: set infill, mask, delete, permute or rotate"
            yield tuple(ConflictKey(name, problem) for name in (*names, "permute", "rotate"))


@register("objective", "denoise", DenoiseSettings)
class Denoise(Seq2SeqObjective):
    settings: DenoiseSettings

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        settings, pad_id = self.settings, draft.template.special_ids["padding"]
        order = shuffle_sentences(draft, settings.permute, rng)
        ids, is_text, offsets = (np.take_along_axis(values, order, axis=1)
                                 for values in (draft.input_ids, draft.is_text, draft.corpus_offsets))
        text_index = np.cumsum(is_text, axis=1) - 1  # of each token among the text of its row
        count = is_text.sum(1)
        span, inserted = sample_infill_spans(count, settings.infill, settings.mean_span, is_text.shape[1], rng)
        span = np.where(is_text, np.take_along_axis(span, np.maximum(text_index, 0), axis=1), -1)
        masked, deleted = _mask_and_delete(is_text & (span < 0), count, settings.mask, settings.delete, rng)
        is_span_start = span >= 0
        is_span_start[:, 1:] &= np.maximum.accumulate(span, axis=1)[:, :-1] < span[:, 1:]  # it becomes the mask
        ids = np.where(is_span_start | masked, draft.corpus.tokenizer.special_id("mask"), ids)
        offsets = np.where(is_span_start, -1, offsets)  # the mask of a span has no corpus offset
        not_padding = np.arange(is_text.shape[1]) < draft.lengths[:, None]
        keep = not_padding & (is_span_start | (span < 0)) & ~deleted
        source = _insert_masks(draft, ids, offsets, keep, is_text, inserted, pad_id)
        source = rotate_rows(source, _template_lengths(draft), settings.rotate, rng)
        set_seq2seq_rows(draft, source, unchanged_rows(draft))


def shuffle_sentences(draft: Draft, probability: float, rng: RNG) -> np.ndarray:
    """(rows, length) source index of every position: with `probability`, the sentences of a row are in random order.
    Sentences do not cross special tokens such as document separators."""
    is_text = draft.is_text
    rows, length = is_text.shape
    uniform, keys = rng.random((rows, 1)), rng.random((rows, length))
    sentence = np.searchsorted(draft.corpus.sentence_starts, draft.corpus_offsets, side="right")
    is_start = np.ones(is_text.shape, dtype=bool)
    is_start[:, 1:] = (sentence[:, 1:] != sentence[:, :-1]) | ~is_text[:, 1:] | ~is_text[:, :-1]
    first = np.maximum.accumulate(np.where(is_start, np.arange(length), 0), axis=1)
    # Between two special tokens; the integer part of the sort key keeps these segments in order.
    segment = np.cumsum(~is_text | np.concatenate([~is_text[:, :1], ~is_text[:, :-1]], axis=1), axis=1)
    key = segment + np.where(uniform < probability, np.take_along_axis(keys, first, axis=1), 0.0)
    return np.argsort(key, axis=1, kind="stable")


def sample_infill_spans(lengths: np.ndarray, fraction: float, mean_length: float, width: int,
                        rng: RNG) -> tuple[np.ndarray, np.ndarray]:
    """Sample infilling spans: (rows, width) span index of each text token, -1 for none, and (rows, width + 1) number of
    empty spans before it. Lengths are Poisson distributed; the last span is cut so that the fraction is exact. All
    arrangements of spans and remaining tokens are equally likely."""
    rows = len(lengths)
    num_masked = stochastic_round(lengths * fraction, rng)
    sizes, spans = _sample_span_lengths(num_masked, mean_length, int(2 * width * fraction / mean_length) + 20, rng)
    # A row is a sequence of elements, each a remaining token or a span; sample which of them are spans.
    position = np.arange(width)
    elements = lengths - num_masked + spans
    keys = np.where(position < elements[:, None], rng.random((rows, width)), 2.0)
    rank = np.argsort(np.argsort(keys, axis=1), axis=1)
    is_span = rank < spans[:, None]
    span_size = np.take_along_axis(sizes, np.minimum(rank, sizes.shape[1] - 1), axis=1)
    size = np.where(is_span, span_size, position < elements[:, None])
    start = np.cumsum(size, axis=1) - size  # in text tokens
    inserted = np.zeros((rows, width + 1), dtype=np.int64)
    row, element = np.nonzero(is_span & (size == 0))
    np.add.at(inserted, (row, start[row, element]), 1)
    span = np.full((rows, width), -1)
    token_span = np.repeat(np.where(is_span, position, -1).reshape(-1), size.reshape(-1))
    span[position < lengths[:, None]] = token_span
    return span, inserted


def _sample_span_lengths(num_masked: np.ndarray, mean: float, max_spans: int,
                         rng: RNG) -> tuple[np.ndarray, np.ndarray]:
    """(rows, max_spans) span lengths that add up to `num_masked`, and (rows,) the number of spans. There are at most as
    many spans as masked tokens, so that noise never lengthens a text."""
    cumulative = np.cumsum(_poisson_probabilities(mean))
    sizes = np.searchsorted(cumulative, rng.random((len(num_masked), max_spans)), side="right")
    sizes[:, -1] = np.maximum(num_masked, 1)  # reached almost never; then it supplies the missing tokens
    tokens_before = np.cumsum(sizes, axis=1) - sizes
    taken = tokens_before < num_masked[:, None]
    sizes = np.where(taken, np.minimum(sizes, num_masked[:, None] - tokens_before), 0)
    max_empty = num_masked - (sizes > 0).sum(1)
    empty = taken & (sizes == 0)
    taken &= ~empty | (np.cumsum(empty, axis=1) <= max_empty[:, None])
    order = np.argsort(~taken, axis=1, kind="stable")
    return np.take_along_axis(sizes, order, axis=1), taken.sum(1)


def _poisson_probabilities(mean: float) -> np.ndarray:
    """Poisson probabilities of 0, 1, 2..., up to where they vanish."""
    count = int(mean + 12 * mean**0.5 + 12)
    steps = np.concatenate([[-mean], np.log(mean) - np.log(np.arange(1, count))])
    probabilities: np.ndarray = np.exp(np.cumsum(steps))
    return probabilities


def _mask_and_delete(free: np.ndarray, count: np.ndarray, mask: float, delete: float,
                     rng: RNG) -> tuple[np.ndarray, np.ndarray]:
    """(rows, length) bool: masked tokens and deleted tokens, as fractions of the whole text, chosen among `free`."""
    keys = np.where(free, rng.random(free.shape), 2.0)
    rank = np.where(free, np.argsort(np.argsort(keys, axis=1), axis=1), free.shape[1])
    num_masked = stochastic_round(count * mask, rng)
    num_deleted = stochastic_round(count * delete, rng)
    masked = rank < num_masked[:, None]
    return masked, ~masked & (rank < np.minimum(num_masked + num_deleted, free.sum(1))[:, None])


def _insert_masks(draft: Draft, ids: np.ndarray, offsets: np.ndarray, kept_tokens: np.ndarray, is_text: np.ndarray,
                  inserted: np.ndarray, pad_id: int) -> PaddedRows:
    """The kept tokens of each row, with `inserted` mask tokens before text tokens or after the last one."""
    rows, length = ids.shape
    masks_before = np.zeros((rows, length + 1), dtype=np.int64)
    text_count = np.cumsum(is_text, axis=1)
    masks_before[:, :length][is_text] = np.take_along_axis(inserted, np.maximum(text_count - 1, 0), axis=1)[is_text]
    end = length - np.argmax(is_text[:, ::-1], axis=1)  # the position after the text
    row = np.arange(rows)
    masks_before[row, end] += np.where(is_text.any(1), inserted[row, text_count[:, -1]], 0)
    ids, offsets, kept_tokens = (np.concatenate([values, np.zeros((rows, 1), values.dtype)], axis=1)
                                 for values in (ids, offsets, kept_tokens))
    max_masks = int(masks_before.max(initial=0))  # columns for masks before every position: rarely more than two

    def with_mask_columns(values: np.ndarray, mask_value: int) -> np.ndarray:
        masks = np.full((rows, length + 1, max_masks), mask_value, dtype=values.dtype)
        return np.concatenate([masks, values[:, :, None]], axis=2).reshape(rows, -1)

    is_mask = np.arange(max_masks) < masks_before[:, :, None]
    selected = np.concatenate([is_mask, kept_tokens[:, :, None]], axis=2).reshape(rows, -1)
    return PaddedRows.select(with_mask_columns(ids, draft.corpus.tokenizer.special_id("mask")), selected, pad_id,
                             with_mask_columns(offsets, -1))


def _template_lengths(draft: Draft) -> tuple[np.ndarray, np.ndarray]:
    """(rows,) numbers of special tokens of the template before and after the text of each row."""
    is_text, length = draft.is_text, draft.is_text.shape[1]
    first = np.argmax(is_text, axis=1)
    end = length - np.argmax(is_text[:, ::-1], axis=1)  # the position after the text
    return np.where(is_text.any(1), first, draft.lengths), np.where(is_text.any(1), draft.lengths - end, 0)


def rotate_rows(rows: PaddedRows, template_lengths: tuple[np.ndarray, np.ndarray], probability: float,
                rng: RNG) -> PaddedRows:
    """With `probability`, rotate a row to start at a random token; the special tokens before and after it stay."""
    uniform, fraction = rng.random((len(rows.input_ids), 2)).T
    before, after = (lengths[:, None] for lengths in template_lengths)
    text_length = np.maximum(rows.lengths[:, None] - before - after, 0)
    shift = np.where(uniform < probability, fraction, 0.0)[:, None] * text_length
    position = np.arange(rows.input_ids.shape[1])
    rotated = before + (position - before + shift.astype(np.int64)) % np.maximum(text_length, 1)
    is_text = (position >= before) & (position < before + text_length)
    source = np.where(is_text, rotated, position)
    offsets = rows.corpus_offsets
    return PaddedRows(np.take_along_axis(rows.input_ids, source, axis=1), rows.lengths,
                      corpus_offsets=None if offsets is None else np.take_along_axis(offsets, source, axis=1))
