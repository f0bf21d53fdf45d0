"""Masked diffusion: a language model that fills in masks in any order (MDLM, arXiv:2406.07524).

Noise masks every token with probability t, and t is uniform between 0 and 1 for each row. The loss of a masked token
has the weight 1 / t. Its expected sum over a text is an upper bound on the negative log-likelihood (section 3.3 with
the log-linear schedule, alpha = 1 - t): a weighted average of masked LM losses at all masking rates. A text is
generated from masks alone, by unmasking some positions in each step (`generation/diffusion.py`).

The network gets no time: the number of masks shows it. Tokens that are not masked are kept, and the mask token has
probability 0 in the output (the paper's SUBS parametrization).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, cast

import numpy as np

from stemma.corpus.row_template import SEPARATOR
from stemma.objectives.base import LM_HEAD, Objective, Requirements
from stemma.registry import register
from stemma.schema import base
from stemma.schema.base import Conflict, ConflictKey
from stemma.schema.corpus import packing_names
from stemma.schema.objective import AttentionMaskKind, GenerationCapability, ObjectiveSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG
    from stemma.network.heads import LMHead
    from stemma.network.inputs_outputs import NetworkOutput
    from stemma.network.network import Network
    from stemma.objectives.batch import Batch
    from stemma.schema.recipe import RecipeSettings

MinimumRate = Annotated[float, base.constraint(lambda x: 0 < x < 1, "must lie between 0 and 1")]


class MaskedDiffusionSettings(ObjectiveSettings):
    kind: Literal["masked_diffusion"]
    sampling: Literal["stratified", "independent"] = "stratified"  # of the masking rates of a batch: one in each of as
    #                                                                many equal parts of 0 to 1 as there are rows
    minimum_rate: MinimumRate = 1e-3  # smallest masking rate: weights are at most 1000
    transform: bool = False  # LM head of masked models: dense layer, norm and bias

    special_tokens = frozenset({"mask"})
    attention_mask: ClassVar[AttentionMaskKind] = "full"
    masks_tokens = True
    predicts_mask_token = False

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        """Rows in random order: a row's masking rate follows from its index in the batch."""
        return packing_names(contiguous=False)

    @property
    def generation(self) -> GenerationCapability | None:
        return GenerationCapability("diffusion")

    @property
    def predicts_bidirectionally(self) -> bool:
        return True

    @property
    def sentence_scores(self) -> tuple[str, ...]:
        """The bound is closer to the likelihood; masks one by one have no random numbers."""
        return ("masked", "bound")

    def recipe_conflicts(self, name: str, recipe: RecipeSettings) -> Iterator[Conflict]:
        if recipe.network.embedding.cutoffs:
            yield (ConflictKey(f"objective.{name}", "weights each loss, and an adaptive softmax cannot; set "
                                                    "network.embedding.cutoffs=[]"),
                   ConflictKey("network.embedding.cutoffs", f"objective.{name} needs a plain softmax"))
        if recipe.network.embedding.logit_softcap is not None:
            why = "gives the mask token probability 0, and soft-capped logits are bounded"
            yield (ConflictKey(f"objective.{name}", f"{why}: remove=network.embedding.logit_softcap"),
                   ConflictKey("network.embedding.logit_softcap", f"leave it out: objective.{name} {why}"))
        if recipe.network.generator is not None:
            yield (ConflictKey(f"objective.{name}", "is not supported beside a generator: remove=network.generator"),
                   ConflictKey("network.generator", f"is not supported beside objective.{name}"))


@register("objective", "masked_diffusion", MaskedDiffusionSettings)
class MaskedDiffusion(Objective):
    settings: MaskedDiffusionSettings
    predicts_tokens = True
    predicts_separators = True

    def requirements(self) -> Requirements:
        from stemma.network.heads import LMHeadSpec

        return Requirements(special_tokens=frozenset({"mask"}),
                            heads={LM_HEAD: LMHeadSpec(transform=self.settings.transform)})

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        candidates = self.candidates(draft)
        uniform = rng.random((draft.rows, candidates.shape[1] + 1))
        rates = sample_rates(uniform[:, 0], self.settings.minimum_rate, self.settings.sampling == "stratified")
        masked = candidates & (uniform[:, 1:] < rates[:, None])
        draft.add_token_targets(LM_HEAD, at=masked, labels=draft.original_ids, row_weights=1 / rates,
                                denominator=float(candidates.sum()))
        draft.input_ids = np.where(masked, draft.corpus.tokenizer.special_id("mask"), draft.input_ids).astype(np.int32)

    @staticmethod
    def candidates(draft: Draft) -> np.ndarray:
        """(rows, length) bool: the text and the separators between documents, as a causal model predicts them; not the
        special tokens at both ends of a row, which are always the same."""
        position = np.arange(draft.is_text.shape[1])
        inner = (position > 0) & (position < draft.lengths[:, None] - 1)
        separator = draft.template.special_ids.get(SEPARATOR, -1)
        return np.asarray(draft.is_text | (inner & (draft.original_ids == separator)))

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        target, ids = batch.token_targets[LM_HEAD], batch.streams["encoder"].input_ids
        assert ids is not None
        hidden = output["encoder"].flatten(0, 1)[target.index]  # (N, width): masked positions only
        mask_token = ids.flatten()[target.index[:1]]  # every target is a mask; empty if there is none
        head = cast("LMHead", network.head(LM_HEAD))
        return {self.name: head.loss_without(mask_token, hidden, target.labels, target.denominators)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        """Mean loss of a unigram model over all tokens, masked or not: its bound is its likelihood."""
        target, ids = batch.token_targets[LM_HEAD], batch.streams["encoder"].input_ids
        assert ids is not None
        original = ids.flatten().index_copy(0, target.index, target.labels).view_as(ids).cpu().numpy()
        mask = batch.streams["encoder"].attention_token_mask()
        lengths = np.full(len(original), original.shape[1]) if mask is None else mask.sum(1).cpu().numpy()
        inner = (np.arange(original.shape[1]) < lengths[:, None] - 1)
        inner[:, 0] = False
        return {self.name: float(-unigram[original[inner]].mean())}


def sample_rates(uniform: np.ndarray, minimum: float, stratified: bool) -> np.ndarray:
    """(rows,) masking rates between `minimum` and 1 from uniform numbers. Stratified: row i of n has its rate in part
    i of n, so that every batch has low and high rates (the authors' antithetic sampling)."""
    if stratified:
        uniform = (np.arange(len(uniform)) + uniform) / len(uniform)
    rates: np.ndarray = minimum + (1 - minimum) * uniform
    return rates
