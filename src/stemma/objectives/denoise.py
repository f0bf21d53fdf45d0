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

from stemma.corpus.sides import Side
from stemma.objectives.masking import rounded
from stemma.objectives.seq2seq import DecoderTask, DecoderTaskSettings, source_and_target, whole_text
from stemma.registry import register
from stemma.schema.base import BelowOne, Blame, Conflict, Probability
from stemma.schema.task import Gap, MeanSpan, Writing

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.randomness import Randomness


class DenoiseSettings(DecoderTaskSettings):
    """BART: spoil a text in one or several ways, in this order, and write the original."""

    kind: Literal["denoise"]
    permute: Probability = 1.0  # how often the sentences of a row are shuffled
    infill: BelowOne = 0.3  # share of the tokens that stand in spans, each replaced by one mask token
    mean_span: MeanSpan = 3.0  # their lengths are Poisson's; a span of none is a mask put in between
    mask: BelowOne = 0.0  # share of the tokens replaced by a mask token each
    delete: BelowOne = 0.0  # share of the tokens that are left out
    rotate: Probability = 0.0  # how often a row begins at any of its tokens

    roles = frozenset({"mask"})

    @property
    def writing(self) -> Writing | None:
        return Writing("decoder", gap=Gap("mask", repeats=True) if self.infill else None)

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        names = ("infill", "mask", "delete")
        if sum(getattr(self, name) for name in names) >= 1:
            what = f"infill {self.infill:g}, mask {self.mask:g} and delete {self.delete:g} leave nothing of the text"
            yield tuple(Blame(name, what) for name in names)
        if not any(getattr(self, name) for name in (*names, "permute", "rotate")):
            what = "nothing is spoilt, so there is nothing to learn: set one of infill, mask, delete, permute, rotate"
            yield tuple(Blame(name, what) for name in (*names, "permute", "rotate"))


@register("objective", "denoise", DenoiseSettings)
class Denoise(DecoderTask):
    settings: DenoiseSettings

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        settings, filling = self.settings, draft.layout.roles["padding"]
        order = shuffle_sentences(draft, settings.permute, rng)
        ids, text, origin = (np.take_along_axis(values, order, axis=1)
                             for values in (draft.ids, draft.text, draft.source))
        number = np.cumsum(text, axis=1) - 1  # of each token among its row's text
        count = text.sum(1)
        span, inserted = infill(count, settings.infill, settings.mean_span, text.shape[1], rng)
        span = np.where(text, np.take_along_axis(span, np.maximum(number, 0), axis=1), -1)
        masked, dropped = _singles(text & (span < 0), count, settings.mask, settings.delete, rng)
        first = span >= 0
        first[:, 1:] &= np.maximum.accumulate(span, axis=1)[:, :-1] < span[:, 1:]  # the one token that becomes the mask
        ids = np.where(first | masked, draft.corpus.tokenizer.role("mask"), ids)
        origin = np.where(first, -1, origin)  # a span's mask stands for no token in particular
        used = np.arange(text.shape[1]) < draft.lengths[:, None]
        keep = used & (first | (span < 0)) & ~dropped
        source = _with_masks(draft, ids, origin, keep, text, inserted, filling)
        source_and_target(draft, rotate(source, _edges(draft), settings.rotate, rng), whole_text(draft))


def shuffle_sentences(draft: Draft, chance: float, rng: Randomness) -> np.ndarray:
    """(rows, length) where each place takes its token from, so that in some rows the sentences come in any order. A
    sentence never crosses a special token, such as one that parts documents."""
    text = draft.text
    rows, length = text.shape
    coin, keys = rng.random((rows, 1)), rng.random((rows, length))
    sentence = np.searchsorted(draft.corpus.sentences, draft.source, side="right")
    begins = np.ones(text.shape, dtype=bool)
    begins[:, 1:] = (sentence[:, 1:] != sentence[:, :-1]) | ~text[:, 1:] | ~text[:, :-1]
    first = np.maximum.accumulate(np.where(begins, np.arange(length), 0), axis=1)
    stretch = np.cumsum(~text | np.concatenate([~text[:, :1], ~text[:, :-1]], axis=1), axis=1)
    key = stretch + np.where(coin < chance, np.take_along_axis(keys, first, axis=1), 0.0)
    return np.argsort(key, axis=1, kind="stable")


def infill(count: np.ndarray, share: float, mean: float, width: int, rng: Randomness) -> tuple[np.ndarray, np.ndarray]:
    """Spans that hide a share of each row's text: (rows, width) the span of each token of the text, -1 for none, and
    (rows, width + 1) how many spans of no token stand before it. Lengths are Poisson's, but the last one drawn is cut
    to the share; all ways of strewing the spans over what is left are equally likely."""
    rows = len(count)
    hidden = rounded(count * share, rng)
    sizes, spans = _draw_sizes(hidden, mean, int(2 * width * share / mean) + 20, rng)
    # What remains of the text and the spans are elements side by side; which of them are spans is drawn.
    place = np.arange(width)
    elements = count - hidden + spans
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
    span[place < count[:, None]] = owner
    return span, inserted


def _draw_sizes(hidden: np.ndarray, mean: float, draws: int, rng: Randomness) -> tuple[np.ndarray, np.ndarray]:
    """(rows, draws) lengths of spans that add up to `hidden`, and (rows,) how many there are. There are no more of them
    than tokens they hide, so that noise never makes a text longer."""
    table = np.cumsum(_poisson(mean))
    sizes = np.searchsorted(table, rng.random((len(hidden), draws)), side="right")
    sizes[:, -1] = np.maximum(hidden, 1)  # never reached, and if so it makes up what is missing
    before = np.cumsum(sizes, axis=1) - sizes
    taken = before < hidden[:, None]
    sizes = np.where(taken, np.minimum(sizes, hidden[:, None] - before), 0)
    room = hidden - (sizes > 0).sum(1)
    empty = taken & (sizes == 0)
    taken &= ~empty | (np.cumsum(empty, axis=1) <= room[:, None])
    order = np.argsort(~taken, axis=1, kind="stable")
    return np.take_along_axis(sizes, order, axis=1), taken.sum(1)


def _poisson(mean: float) -> np.ndarray:
    """Probabilities of 0, 1, 2..., as far as they count."""
    most = int(mean + 12 * mean**0.5 + 12)
    steps = np.concatenate([[-mean], np.log(mean) - np.log(np.arange(1, most))])
    chances: np.ndarray = np.exp(np.cumsum(steps))
    return chances


def _singles(free: np.ndarray, count: np.ndarray, mask: float, delete: float,
             rng: Randomness) -> tuple[np.ndarray, np.ndarray]:
    """(rows, length) which tokens are masked and which are left out: shares of the whole text, of those still free."""
    keys = np.where(free, rng.random(free.shape), 2.0)
    rank = np.where(free, np.argsort(np.argsort(keys, axis=1), axis=1), free.shape[1])
    masks = rounded(count * mask, rng)
    drops = rounded(count * delete, rng)
    return rank < masks[:, None], (rank >= masks[:, None]) & (rank < np.minimum(masks + drops, free.sum(1))[:, None])


def _with_masks(draft: Draft, ids: np.ndarray, origin: np.ndarray, keep: np.ndarray, text: np.ndarray,
                inserted: np.ndarray, filling: int) -> Side:
    """What is kept of each row, and the masks that stand before some tokens of the text or behind its last."""
    rows, length = ids.shape
    before = np.zeros((rows, length + 1), dtype=np.int64)
    number = np.cumsum(text, axis=1)
    before[:, :length][text] = np.take_along_axis(inserted, np.maximum(number - 1, 0), axis=1)[text]
    last = length - np.argmax(text[:, ::-1], axis=1)  # the place behind the text
    everyone = np.arange(rows)
    before[everyone, last] += np.where(text.any(1), inserted[everyone, number[:, -1]], 0)
    ids, origin, keep = (np.concatenate([values, np.zeros((rows, 1), values.dtype)], axis=1)
                         for values in (ids, origin, keep))
    most = int(before.max(initial=0))  # as many columns of possible masks before every place: hardly ever more than two
    def widened(values: np.ndarray, inside: int) -> np.ndarray:
        masks = np.full((rows, length + 1, most), inside, dtype=values.dtype)
        return np.concatenate([masks, values[:, :, None]], axis=2).reshape(rows, -1)

    kept = np.concatenate([np.arange(most) < before[:, :, None], keep[:, :, None]], axis=2).reshape(rows, -1)
    return Side.kept(widened(ids, draft.corpus.tokenizer.role("mask")), kept, filling, widened(origin, -1))


def _edges(draft: Draft) -> tuple[np.ndarray, np.ndarray]:
    """(rows,) special tokens of the template before the text of each row, and behind it."""
    text, length = draft.text, draft.text.shape[1]
    first = np.argmax(text, axis=1)
    last = length - np.argmax(text[:, ::-1], axis=1)
    return np.where(text.any(1), first, draft.lengths), np.where(text.any(1), draft.lengths - last, 0)


def rotate(side: Side, edges: tuple[np.ndarray, np.ndarray], chance: float, rng: Randomness) -> Side:
    """Some rows begin with any of their tokens, and what stood before it comes last; the edges stay."""
    coin, where = rng.random((len(side.ids), 2)).T
    before, behind = (edge[:, None] for edge in edges)
    inside = np.maximum(side.lengths[:, None] - before - behind, 0)
    shift = np.where(coin < chance, where, 0.0)[:, None] * inside
    place = np.arange(side.ids.shape[1])
    turned = before + (place - before + shift.astype(np.int64)) % np.maximum(inside, 1)
    moved = (place >= before) & (place < before + inside)
    chosen = np.where(moved, turned, place)
    return Side(np.take_along_axis(side.ids, chosen, axis=1), side.lengths,
                source=None if side.source is None else np.take_along_axis(side.source, chosen, axis=1))
