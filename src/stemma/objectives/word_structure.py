"""Word structure: shuffle some trigrams and recover their order (StructBERT, arXiv:1908.04577).

It shares the forward pass with `masked_lm` and does not touch masked tokens. The LM head predicts the original token at
each position of a shuffled run.
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
    """StructBERT: shuffle some runs of tokens that are not masked, and recover their order."""

    kind: Literal["word_structure"]
    rate: OpenFraction = 0.05  # fraction of tokens in shuffled runs
    length: Annotated[int, base.constraint(lambda n: n >= 2, "must be 2 or more: one token alone has no order")] = 3

    attention_mask: ClassVar[AttentionMaskKind] = "full"
    @property
    def has_head_layer(self) -> bool:
        return True


@register("objective", "word_structure", WordStructureSettings)
class WordStructure(Objective):
    settings: WordStructureSettings

    def requirements(self) -> Requirements:
        from stemma.network.heads import LMHeadSpec

        return Requirements(heads={LM_HEAD: LMHeadSpec(transform=True)})

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """Runs are on a grid with a random offset, so they never overlap and all are equally likely."""
        size, free = self.settings.length, _unmasked_text(draft)
        rows, length = free.shape
        runs = -(-(length + size - 1) // size)
        num_shuffled = stochastic_round(draft.is_text.sum(1) * self.settings.rate / size, rng)
        offset = (rng.random((rows, 1)) * size).astype(np.int64)  # tokens of the first run before the row
        keys = rng.random((rows, runs))
        shuffle = rng.random((rows, runs, size)).argsort(axis=2)

        position = np.arange(runs * size) - offset  # (rows, runs x size): positions of the grid in the row
        inside = (position >= 0) & (position < length)
        position = np.clip(position, 0, length - 1)
        complete = (np.take_along_axis(free, position, axis=1) & inside).reshape(rows, runs, size).all(axis=2)
        rank = np.where(complete, keys, 2.0).argsort(axis=1).argsort(axis=1)
        selected = complete & (rank < num_shuffled[:, None])

        source = np.take_along_axis(position.reshape(rows, runs, size), shuffle, axis=2)[selected].reshape(-1)
        target = position.reshape(rows, runs, size)[selected].reshape(-1)
        row = np.repeat(np.nonzero(selected)[0], size)
        ids, scored = draft.input_ids.copy(), np.zeros(free.shape, dtype=bool)
        ids[row, target] = draft.input_ids[row, source]
        scored[row, target] = True
        draft.add_token_targets(self.name, at=scored, labels=draft.original_ids)
        draft.input_ids = ids

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        target = batch.token_targets[self.name]
        hidden = output["encoder"].flatten(0, 1)[target.index]  # (N, width)
        return {self.name: network.head(LM_HEAD).loss(hidden, target.labels, target.denominator)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        target = batch.token_targets[self.name]
        return {self.name: float(-unigram[target.labels.cpu().numpy()].sum() / target.denominator)}


def _unmasked_text(draft: Draft) -> np.ndarray:
    """(rows, length) bool: text tokens that no earlier objective masked, replaced or scored."""
    free: np.ndarray = draft.is_text & (draft.input_ids == draft.original_ids)
    for scored in draft.token_targets.values():
        if scored.are_token_ids:
            free.reshape(-1)[scored.index] = False
    return free
