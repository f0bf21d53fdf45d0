"""Denoising: spoil a text, and write the original (BART, arXiv:1910.13461).

The decoder writes the whole text, so the noise may do what it likes, even to the length: shuffle the sentences, replace
stretches by a single mask, mask or drop tokens, begin in the middle. The noises apply in this order. None of them
touches a special token of the template, and of the three that hide tokens each takes others, so that every share is
exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from stemma.corpus.seq2seq_rows import PaddedRows
from stemma.objectives.masking import stochastic_round
from stemma.objectives.seq2seq import Seq2SeqObjective, Seq2SeqObjectiveSettings, rows_as_is, set_seq2seq_rows
from stemma.registry import register
from stemma.schema.base import BelowOne, Conflict, ConflictKey, Probability
from stemma.schema.objective import GapPrompt, GenerationCapability, MeanSpan

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG


class DenoiseSettings(Seq2SeqObjectiveSettings):
    """BART: spoil a text in one or several ways, in this order, and write the original."""

    kind: Literal["denoise"]
    permute: Probability = 1.0  # how often the sentences of a row are shuffled
    infill: BelowOne = 0.3  # share of the tokens that stand in spans, each replaced by one mask token
    mean_span: MeanSpan = 3.0  # their lengths are Poisson's; a span of none is a mask put in between
    mask: BelowOne = 0.0  # share of the tokens replaced by a mask token each
    delete: BelowOne = 0.0  # share of the tokens that are left out
    rotate: Probability = 0.0  # how often a row begins at any of its tokens

    special_tokens = frozenset({"mask"})

    @property
    def generation(self) -> GenerationCapability | None:
        return GenerationCapability("decoder", gap=GapPrompt("mask", repeats_text=True) if self.infill else None)

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        names = ("infill", "mask", "delete")
        if sum(getattr(self, name) for name in names) >= 1:
            what = f"infill {self.infill:g}, mask {self.mask:g} and delete {self.delete:g} leave nothing of the text"
            yield tuple(ConflictKey(name, what) for name in names)
        if not any(getattr(self, name) for name in (*names, "permute", "rotate")):
            what = "nothing is spoilt, so there is nothing to learn: set one of infill, mask, delete, permute, rotate"
            yield tuple(ConflictKey(name, what) for name in (*names, "permute", "rotate"))


@register("objective", "denoise", DenoiseSettings)
class Denoise(Seq2SeqObjective):
    settings: DenoiseSettings

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        settings, filling = self.settings, draft.template.special_ids["padding"]
        order = shuffle_sentences(draft, settings.permute, rng)
        ids, text, origin = (np.take_along_axis(values, order, axis=1)
                             for values in (draft.input_ids, draft.is_text, draft.corpus_offsets))
        number = np.cumsum(text, axis=1) - 1  # of each token among its row's text
        count = text.sum(1)
        span, inserted = sample_infill_spans(count, settings.infill, settings.mean_span, text.shape[1], rng)
        span = np.where(text, np.take_along_axis(span, np.maximum(number, 0), axis=1), -1)
        masked, dropped = _mask_and_delete(text & (span < 0), count, settings.mask, settings.delete, rng)
        first = span >= 0
        first[:, 1:] &= np.maximum.accumulate(span, axis=1)[:, :-1] < span[:, 1:]  # the one token that becomes the mask
        ids = np.where(first | masked, draft.corpus.tokenizer.special_id("mask"), ids)
        origin = np.where(first, -1, origin)  # a span's mask stands for no token in particular
        used = np.arange(text.shape[1]) < draft.lengths[:, None]
        keep = used & (first | (span < 0)) & ~dropped
        source = _insert_masks(draft, ids, origin, keep, text, inserted, filling)
        set_seq2seq_rows(draft, rotate_rows(source, _template_lengths(draft), settings.rotate, rng), rows_as_is(draft))


def shuffle_sentences(draft: Draft, probability: float, rng: RNG) -> np.ndarray:
    """(rows, length) where each place takes its token from, so that in some rows the sentences come in any order. A
    sentence never crosses a special token, such as one that parts documents."""
    text = draft.is_text
    rows, length = text.shape
    coin, keys = rng.random((rows, 1)), rng.random((rows, length))
    sentence = np.searchsorted(draft.corpus.sentence_starts, draft.corpus_offsets, side="right")
    begins = np.ones(text.shape, dtype=bool)
    begins[:, 1:] = (sentence[:, 1:] != sentence[:, :-1]) | ~text[:, 1:] | ~text[:, :-1]
    first = np.maximum.accumulate(np.where(begins, np.arange(length), 0), axis=1)
    stretch = np.cumsum(~text | np.concatenate([~text[:, :1], ~text[:, :-1]], axis=1), axis=1)
    key = stretch + np.where(coin < probability, np.take_along_axis(keys, first, axis=1), 0.0)
    return np.argsort(key, axis=1, kind="stable")


def sample_infill_spans(lengths: np.ndarray, fraction: float, mean_length: float, width: int,
                        rng: RNG) -> tuple[np.ndarray, np.ndarray]:
    """Spans that hide a share of each row's text: (rows, width) the span of each token of the text, -1 for none, and
    (rows, width + 1) how many spans of no token stand before it. Lengths are Poisson's, but the last one drawn is cut
    to the share; all ways of strewing the spans over what is left are equally likely."""
    rows = len(lengths)
    hidden = stochastic_round(lengths * fraction, rng)
    sizes, spans = _sample_span_lengths(hidden, mean_length, int(2 * width * fraction / mean_length) + 20, rng)
    # What remains of the text and the spans are elements side by side; which of them are spans is drawn.
    place = np.arange(width)
    elements = lengths - hidden + spans
    keys = np.where(place < elements[:, None], rng.random((rows, width)), 2.0)
    rank = np.argsort(np.argsort(keys, axis=1), axis=1)
    is_span = rank < spans[:, None]
    drawn = np.take_along_axis(sizes, np.minimum(rank, sizes.shape[1] - 1), axis=1)
    size = np.where(is_span, drawn, place < elements[:, None])
    start = np.cumsum(size, axis=1) - size  # in tokens of the text
    inserted = np.zeros((rows, width + 1), dtype=np.int64)
    row, element = np.nonzero(is_span & (size == 0))
    np.add.at(inserted, (row, start[row, element]), 1)
    span = np.full((rows, width), -1)
    owner = np.repeat(np.where(is_span, place, -1).reshape(-1), size.reshape(-1))
    span[place < lengths[:, None]] = owner
    return span, inserted


def _sample_span_lengths(num_masked: np.ndarray, mean: float, max_spans: int, rng: RNG) -> tuple[np.ndarray,
                                                                                                 np.ndarray]:
    """(rows, draws) lengths of spans that add up to `hidden`, and (rows,) how many there are. There are no more of them
    than tokens they hide, so that noise never makes a text longer."""
    table = np.cumsum(_poisson_probabilities(mean))
    sizes = np.searchsorted(table, rng.random((len(num_masked), max_spans)), side="right")
    sizes[:, -1] = np.maximum(num_masked, 1)  # never reached, and if so it makes up what is missing
    before = np.cumsum(sizes, axis=1) - sizes
    taken = before < num_masked[:, None]
    sizes = np.where(taken, np.minimum(sizes, num_masked[:, None] - before), 0)
    room = num_masked - (sizes > 0).sum(1)
    empty = taken & (sizes == 0)
    taken &= ~empty | (np.cumsum(empty, axis=1) <= room[:, None])
    order = np.argsort(~taken, axis=1, kind="stable")
    return np.take_along_axis(sizes, order, axis=1), taken.sum(1)


def _poisson_probabilities(mean: float) -> np.ndarray:
    """Probabilities of 0, 1, 2..., as far as they count."""
    most = int(mean + 12 * mean**0.5 + 12)
    steps = np.concatenate([[-mean], np.log(mean) - np.log(np.arange(1, most))])
    chances: np.ndarray = np.exp(np.cumsum(steps))
    return chances


def _mask_and_delete(free: np.ndarray, count: np.ndarray, mask: float, delete: float,
             rng: RNG) -> tuple[np.ndarray, np.ndarray]:
    """(rows, length) which tokens are masked and which are left out: shares of the whole text, of those still free."""
    keys = np.where(free, rng.random(free.shape), 2.0)
    rank = np.where(free, np.argsort(np.argsort(keys, axis=1), axis=1), free.shape[1])
    masks = stochastic_round(count * mask, rng)
    drops = stochastic_round(count * delete, rng)
    return rank < masks[:, None], (rank >= masks[:, None]) & (rank < np.minimum(masks + drops, free.sum(1))[:, None])


def _insert_masks(draft: Draft, ids: np.ndarray, origin: np.ndarray, kept_tokens: np.ndarray, text: np.ndarray,
                inserted: np.ndarray, pad_id: int) -> PaddedRows:
    """What is kept of each row, and the masks that stand before some tokens of the text or behind its last."""
    rows, length = ids.shape
    before = np.zeros((rows, length + 1), dtype=np.int64)
    number = np.cumsum(text, axis=1)
    before[:, :length][text] = np.take_along_axis(inserted, np.maximum(number - 1, 0), axis=1)[text]
    last = length - np.argmax(text[:, ::-1], axis=1)  # the place behind the text
    everyone = np.arange(rows)
    before[everyone, last] += np.where(text.any(1), inserted[everyone, number[:, -1]], 0)
    ids, origin, kept_tokens = (np.concatenate([values, np.zeros((rows, 1), values.dtype)], axis=1)
                         for values in (ids, origin, kept_tokens))
    most = int(before.max(initial=0))  # as many columns of possible masks before every place: hardly ever more than two
    def widened(values: np.ndarray, inside: int) -> np.ndarray:
        masks = np.full((rows, length + 1, most), inside, dtype=values.dtype)
        return np.concatenate([masks, values[:, :, None]], axis=2).reshape(rows, -1)

    kept = np.concatenate([np.arange(most) < before[:, :, None], kept_tokens[:, :, None]], axis=2).reshape(rows, -1)
    return PaddedRows.select(widened(ids, draft.corpus.tokenizer.special_id("mask")), kept, pad_id, widened(origin, -1))


def _template_lengths(draft: Draft) -> tuple[np.ndarray, np.ndarray]:
    """(rows,) special tokens of the template before the text of each row, and behind it."""
    text, length = draft.is_text, draft.is_text.shape[1]
    first = np.argmax(text, axis=1)
    last = length - np.argmax(text[:, ::-1], axis=1)
    return np.where(text.any(1), first, draft.lengths), np.where(text.any(1), draft.lengths - last, 0)


def rotate_rows(rows: PaddedRows, edges: tuple[np.ndarray, np.ndarray], probability: float, rng: RNG) -> PaddedRows:
    """Some rows begin with any of their tokens, and what stood before it comes last; the edges stay."""
    coin, where = rng.random((len(rows.input_ids), 2)).T
    before, behind = (edge[:, None] for edge in edges)
    inside = np.maximum(rows.lengths[:, None] - before - behind, 0)
    shift = np.where(coin < probability, where, 0.0)[:, None] * inside
    place = np.arange(rows.input_ids.shape[1])
    turned = before + (place - before + shift.astype(np.int64)) % np.maximum(inside, 1)
    moved = (place >= before) & (place < before + inside)
    chosen = np.where(moved, turned, place)
    return PaddedRows(np.take_along_axis(rows.input_ids, chosen, axis=1), rows.lengths,
                corpus_offsets=None if rows.corpus_offsets is None
                else np.take_along_axis(rows.corpus_offsets, chosen, axis=1))
