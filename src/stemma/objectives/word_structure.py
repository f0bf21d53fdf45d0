"""Word structure: some runs of three neighbouring tokens are shuffled; put them back. (StructBERT, arXiv:1908.04577)

It shares its pass with the masked tokens, and leaves those alone. What is guessed is the token that belongs to each
place of a run, by the same head that guesses masked ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from stemma.objectives.base import VOCABULARY, Needs, Objective
from stemma.objectives.masking import rounded
from stemma.registry import register
from stemma.schema import base
from stemma.schema.base import Share
from stemma.schema.task import ObjectiveSettings, Sees

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.corpus.randomness import Randomness
    from stemma.network.network import Network
    from stemma.network.streams import Hidden
    from stemma.objectives.batch import Batch


class WordStructureSettings(ObjectiveSettings):
    """StructBERT: shuffle some runs of tokens that are not hidden, and put them back."""

    kind: Literal["word_structure"]
    rate: Share = 0.05  # share of the tokens that stand in shuffled runs
    length: Annotated[int, base.limit(lambda n: n >= 2, "must be 2 or more: one token alone has no order")] = 3

    sees: ClassVar[Sees] = "full"


@register("objective", "word_structure", WordStructureSettings)
class WordStructure(Objective):
    settings: WordStructureSettings

    def needs(self) -> Needs:
        from stemma.network.heads import TokenHead

        return Needs(heads={VOCABULARY: TokenHead(transform=True)})

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        """Runs lie on a grid that begins anywhere: so they never overlap, and each is as likely as any other."""
        size, free = self.settings.length, _untouched(draft)
        rows, length = free.shape
        runs = -(-(length + size - 1) // size)
        wanted = rounded(draft.text.sum(1) * self.settings.rate / size, rng)
        begin = (rng.random((rows, 1)) * size).astype(np.int64)  # how much of the first run lies before the row
        keys = rng.random((rows, runs))
        shuffle = rng.random((rows, runs, size)).argsort(axis=2)

        place = np.arange(runs * size) - begin  # (rows, runs x size): the grid's places in the row
        inside = (place >= 0) & (place < length)
        place = np.clip(place, 0, length - 1)
        whole = (np.take_along_axis(free, place, axis=1) & inside).reshape(rows, runs, size).all(axis=2)
        rank = np.where(whole, keys, 2.0).argsort(axis=1).argsort(axis=1)
        taken = whole & (rank < wanted[:, None])

        moved = np.take_along_axis(place.reshape(rows, runs, size), shuffle, axis=2)[taken]
        kept = place.reshape(rows, runs, size)[taken]  # (taken runs, size)
        row = np.repeat(np.nonzero(taken)[0], size)
        ids, chosen = draft.ids.copy(), np.zeros(free.shape, dtype=bool)
        ids[row, kept.reshape(-1)] = draft.ids[row, moved.reshape(-1)]
        chosen[row, kept.reshape(-1)] = True
        draft.score(self.name, at=chosen, labels=draft.original)
        draft.ids = ids

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        target = batch.scores[self.name]
        places = hidden["encoder"].flatten(0, 1)[target.index]  # (N, width)
        return {self.name: network.head(VOCABULARY).loss(places, target.labels, target.total)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        target = batch.scores[self.name]
        return {self.name: float(-unigram[target.labels.cpu().numpy()].sum() / target.total)}


def _untouched(draft: Draft) -> np.ndarray:
    """(rows, length) bool: text that no task before this one hid, replaced, or asks to be guessed."""
    free: np.ndarray = draft.text & (draft.ids == draft.original)
    for scored in draft.scores.values():
        if scored.tokens:
            free.reshape(-1)[scored.index] = False
    return free
