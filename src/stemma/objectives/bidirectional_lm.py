"""Bidirectional language modelling: one network predicts the next token, another the previous one (ELMo,
arXiv:1802.05365, section 3.1).

Half of the rows of a batch are read from left to right, and half from right to left. Each row keeps its direction, so
the state that a network carries from batch to batch belongs to the text that it has read. The loss is the mean over
both directions, which share the output layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from stemma.objectives.base import LM_HEAD, Requirements
from stemma.objectives.causal_lm import NextTokenObjective
from stemma.registry import register
from stemma.schema.base import Conflict, ConflictKey, Natural
from stemma.schema.objective import GenerationCapability, ObjectiveSettings

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG
    from stemma.network.inputs_outputs import NetworkOutput
    from stemma.network.network import Network
    from stemma.objectives.batch import Batch
    from stemma.schema.recipe import RecipeSettings


class BidirectionalLMSettings(ObjectiveSettings):
    kind: Literal["bidirectional_lm"]
    sampled: Natural = 0  # number of tokens that the softmax samples in training; 0 = all

    special_tokens = frozenset({"end"})  # separates documents
    size_keys: ClassVar[tuple[str, ...]] = ("sampled",)

    @property
    def generation(self) -> GenerationCapability | None:
        return GenerationCapability("next")  # the network that reads from left to right

    @property
    def sentence_scores(self) -> tuple[str, ...]:
        return ("causal", "after_first")

    def recipe_conflicts(self, name: str, recipe: RecipeSettings) -> Iterator[Conflict]:
        if not recipe.network.depth.opposite_directions:
            what = f"trains a network for each direction, and a body of kind {recipe.network.depth.kind} has one for " \
                   "both"
            yield (ConflictKey(f"objective.{name}", f"{what}: set network.depth.kind=opposite_lstms"),
                   ConflictKey("network.depth.kind", f"objective.{name} {what}"))
        if self.sampled >= recipe.tokenizer.vocab_size:
            what = f"there are {recipe.tokenizer.vocab_size} tokens to sample from: set fewer, or 0 for all of them"
            yield (ConflictKey(f"objective.{name}.sampled", what),
                   ConflictKey("tokenizer.vocab_size", f"objective.{name}.sampled = {self.sampled} needs more tokens"))


@register("objective", "bidirectional_lm", BidirectionalLMSettings)
class BidirectionalLM(NextTokenObjective):
    settings: BidirectionalLMSettings

    def reversed_rows(self, rows: int) -> np.ndarray:
        """The second half of the batch is read from right to left."""
        return np.arange(rows) >= (rows + 1) // 2

    def requirements(self) -> Requirements:
        from stemma.network.heads import LMHeadSpec

        return Requirements(heads={LM_HEAD: LMHeadSpec(transform=False, bias=True, one_direction=True)})

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """The next token in reading order."""
        labels = draft.next_tokens()
        draft.add_token_targets(LM_HEAD, at=labels >= 0, labels=labels)

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        if not (self.settings.sampled and network.training) or batch.held_out:
            return super().loss(network, output, batch)
        import torch

        from stemma.network.heads import LMHead

        target, stream, head = batch.token_targets[LM_HEAD], batch.streams["encoder"], network.head(LM_HEAD)
        assert isinstance(head, LMHead)
        hidden = output["encoder"].flatten(0, 1)[target.index]
        backward = torch.zeros_like(target.index, dtype=torch.bool) if stream.reversed_rows is None else \
            stream.reversed_rows[target.index // stream.length]
        # each direction has a sample of its own, as in the authors' code
        return {self.name: torch.stack([
            head.sampled_loss(hidden[rows], target.labels[rows], target.denominator, self.settings.sampled)
            for rows in (~backward, backward)]).sum()}
