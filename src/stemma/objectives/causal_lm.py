"""Causal language modelling: each position predicts the next token from the tokens before it (GPT, 2018).

`direction = "backward"` does the same on the reversed text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from stemma.objectives.base import LM_HEAD, Objective, Requirements
from stemma.registry import register
from stemma.schema.base import Conflict, ConflictKey
from stemma.schema.corpus import pair_packings
from stemma.schema.objective import AttentionMaskKind, GenerationCapability, ObjectiveSettings

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG
    from stemma.network.inputs_outputs import NetworkOutput
    from stemma.network.network import Network
    from stemma.objectives.batch import Batch
    from stemma.schema.recipe import RecipeSettings

LM_HEAD_NAME = LM_HEAD


class NextTokenObjective(Objective):
    """Base of objectives in which each position predicts the next token."""

    predicts_tokens = True
    predicts_next = True

    def requirements(self) -> Requirements:
        from stemma.network.heads import LMHeadSpec

        return Requirements(heads={LM_HEAD_NAME: LMHeadSpec(transform=False, bias=False)})

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        target = batch.token_targets[LM_HEAD_NAME]
        hidden = output["encoder"].flatten(0, 1)
        if len(target.index) < len(hidden):  # usually every position is scored, and there is nothing to gather
            hidden = hidden[target.index]
        return {self.name: network.head(LM_HEAD_NAME).loss(hidden, target.labels, target.denominator)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: float(-unigram[batch.token_targets[LM_HEAD_NAME].labels.cpu().numpy()].mean())}


class CausalLMSettings(ObjectiveSettings):
    kind: Literal["causal_lm"]
    direction: Literal["forward", "backward"] = "forward"  # backward: reversed text
    scored: Literal["all", "second"] = "all"  # second: A of a pair is context, only B is predicted
    transform: bool = False  # LM head of masked models: dense layer, norm and bias (Ettin)
    bias: bool | None = None  # a bias for every token of the vocabulary; None: only with transform

    special_tokens = frozenset({"end"})  # separates documents; optional (openai-gpt's vocabulary has none)
    attention_mask: ClassVar[AttentionMaskKind] = "causal"

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return () if self.scored == "all" else pair_packings()

    @property
    def generation(self) -> GenerationCapability | None:
        return GenerationCapability("next") if self.scored == "all" else GenerationCapability("prefix", paired=True)

    @property
    def sentence_scores(self) -> tuple[str, ...]:
        return ("causal", "after_first") if self.scored == "all" else ()

    @property
    def pair_finetuning_keys(self) -> dict[str, Any] | None:
        return {"scored": "second"}

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.scored == "second" and self.direction == "backward":
            yield (ConflictKey("scored", "with direction=backward B is read first, so it cannot be predicted from A"),
                   ConflictKey("direction", "with scored=second A must be read first"))


    def recipe_conflicts(self, name: str, recipe: RecipeSettings) -> Iterator[Conflict]:
        yield from super().recipe_conflicts(name, recipe)
        network = recipe.network
        width = network.embedding.width
        if width not in (None, network.width) and network.embedding.tied and not self.transform:
            what = f"the LM head is the embedding, {width} wide, and reads hidden states {network.width} wide"
            yield (ConflictKey("network.embedding.width", f"{what}: set network.embedding.tied=false or leave it out"),
                   ConflictKey("network.embedding.tied", f"{what}: set false or remove=network.embedding.width"),
                   ConflictKey("network.width", f"{what}: set network.embedding.tied=false or as wide an embedding"),
                   ConflictKey(f"objective.{name}", f"{what}: set network.embedding.tied=false"))


@register("objective", "causal_lm", CausalLMSettings)
class CausalLM(NextTokenObjective):
    settings: CausalLMSettings

    def requirements(self) -> Requirements:
        from stemma.network.heads import LMHeadSpec

        settings = self.settings
        bias = settings.transform if settings.bias is None else settings.bias
        return Requirements(heads={LM_HEAD_NAME: LMHeadSpec(transform=settings.transform, bias=bias)})

    def reversed_rows(self, rows: int) -> np.ndarray:
        return np.full(rows, self.settings.direction == "backward")

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """No token is masked: the attention mask is causal."""
        labels = draft.next_tokens()
        is_target = labels >= 0
        if self.settings.scored == "second":
            is_target &= np.arange(is_target.shape[1]) + 1 >= draft.segment_b_start()[:, None]
        draft.add_token_targets(LM_HEAD_NAME, at=is_target, labels=labels)
