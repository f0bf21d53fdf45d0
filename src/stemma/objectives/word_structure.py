"""Word structure: some runs of three neighbouring tokens are shuffled; put them back. (StructBERT, arXiv:1908.04577)

It shares its pass with the masked tokens, and leaves those alone. What is guessed is the token that belongs to each
place of a run, by the same head that guesses masked ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from stemma.objectives.base import LM_HEAD, Objective, Requirements
from stemma.objectives.masking import stochastic_round
from stemma.registry import register
from stemma.schema import base
from stemma.schema.base import OpenFraction
from stemma.schema.objective import AttentionMaskKind, ObjectiveSettings

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG
    from stemma.network.inputs_outputs import NetworkOutput
    from stemma.network.network import Network
    from stemma.objectives.batch import Batch


class WordStructureSettings(ObjectiveSettings):
    """StructBERT: shuffle some runs of tokens that are not hidden, and put them back."""

    kind: Literal["word_structure"]
    rate: OpenFraction = 0.05  # share of the tokens that stand in shuffled runs
    length: Annotated[int, base.constraint(lambda n: n >= 2, "must be 2 or more: one token alone has no order")] = 3

    sees: ClassVar[AttentionMaskKind] = "full"


@register("objective", "word_structure", WordStructureSettings)
class WordStructure(Objective):
    settings: WordStructureSettings

    def requirements(self) -> Requirements:
        from stemma.network.heads import LMHeadSpec

        return Requirements(heads={LM_HEAD: LMHeadSpec(transform=True)})

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """Runs lie on a grid that begins anywhere: so they never overlap, and each is as likely as any other."""
        size, free = self.settings.length, _unmasked_text(draft)
        rows, length = free.shape
        runs = -(-(length + size - 1) // size)
        wanted = stochastic_round(draft.is_text.sum(1) * self.settings.rate / size, rng)
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
        ids, chosen = draft.input_ids.copy(), np.zeros(free.shape, dtype=bool)
        ids[row, kept.reshape(-1)] = draft.input_ids[row, moved.reshape(-1)]
        chosen[row, kept.reshape(-1)] = True
        draft.add_token_targets(self.name, at=chosen, labels=draft.original_ids)
        draft.input_ids = ids

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        target = batch.token_targets[self.name]
        places = output["encoder"].flatten(0, 1)[target.index]  # (N, width)
        return {self.name: network.head(LM_HEAD).loss(places, target.labels, target.denominator)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        target = batch.token_targets[self.name]
        return {self.name: float(-unigram[target.labels.cpu().numpy()].sum() / target.denominator)}


def _unmasked_text(draft: Draft) -> np.ndarray:
    """(rows, length) bool: text that no task before this one hid, replaced, or asks to be guessed."""
    free: np.ndarray = draft.is_text & (draft.input_ids == draft.original_ids)
    for scored in draft.token_targets.values():
        if scored.are_token_ids:
            free.reshape(-1)[scored.index] = False
    return free
