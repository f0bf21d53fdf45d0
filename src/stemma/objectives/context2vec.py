"""Negative sampling of words given their context (context2vec, CoNLL 2016): the word of a position against words that
are drawn by their frequency.

For a context c, its word t and k draws n from p(n) ~ count(n)^power the loss is
-log sigmoid(t . c) - sum over n of log sigmoid(-n . c); its optimum is t . c = log p(t | c) - log(k p(t)), the
pointwise mutual information shifted (arXiv:1402.3722; Levy & Goldberg 2014).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from stemma.corpus.draft import TokenTargets
from stemma.objectives.base import LM_HEAD, Objective, Requirements
from stemma.registry import register
from stemma.schema.base import Conflict, ConflictKey, Count, Probability
from stemma.schema.objective import ObjectiveSettings

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG
    from stemma.network.inputs_outputs import NetworkOutput
    from stemma.network.network import Network
    from stemma.objectives.batch import Batch
    from stemma.schema.recipe import RecipeSettings


class Context2vecObjectiveSettings(ObjectiveSettings):
    kind: Literal["context2vec"]
    negatives: Count = 10  # words that are drawn for each word of the text
    power: Probability = 0.75  # of their counts

    def recipe_conflicts(self, name: str, recipe: RecipeSettings) -> Iterator[Conflict]:
        body = recipe.network.depth
        if not body.excludes_token:
            what = f"predicts the token of a position, which a body of kind {body.kind} reads"
            yield (ConflictKey(f"objective.{name}", f"{what}: set network.depth.kind=context2vec"),
                   ConflictKey("network.depth.kind", f"objective.{name} {what}"))
        if recipe.network.embedding.tied:
            yield (ConflictKey("network.embedding.tied", f"objective.{name} has vectors of its own for the words that "
                                                         "it predicts: set false"),
                   ConflictKey(f"objective.{name}", "has vectors of its own: set network.embedding.tied=false"))


@register("objective", "context2vec", Context2vecObjectiveSettings)
class Context2vec(Objective):
    settings: Context2vecObjectiveSettings
    predicts_tokens = True

    def requirements(self) -> Requirements:
        from stemma.network.heads import LMHeadSpec

        return Requirements(heads={LM_HEAD: LMHeadSpec(transform=False, bias=False)})

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """The token of every position of text, and after it the tokens that are drawn for it."""
        index = np.flatnonzero(draft.is_text)
        cumulative = np.cumsum(draft.corpus.token_counts.astype(np.float64)**self.settings.power)
        uniform = rng.random((len(index), self.settings.negatives)) * cumulative[-1]
        drawn = np.searchsorted(cumulative, uniform, side="right")
        labels = np.concatenate([draft.original_ids.reshape(-1)[index, None], drawn], 1).astype(np.int64)
        draft.token_targets[LM_HEAD] = TokenTargets(index, labels)

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        import torch
        from torch.nn import functional

        from stemma.network.heads import LMHead

        target, head = batch.token_targets[LM_HEAD], network.head(LM_HEAD)
        assert isinstance(head, LMHead)
        context = output["encoder"].flatten(0, 1)[target.index].float()  # (N, width)
        scores = torch.bmm(functional.embedding(target.labels, head.weight).float(), context[..., None])[..., 0]
        losses = functional.softplus(-scores[:, :1]) + functional.softplus(scores[:, 1:]).sum(1, keepdim=True)
        return {self.name: losses.sum() / target.denominator}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        """The loss of the best scores that ignore the context: log p(t) - log(k q(t))."""
        labels = batch.token_targets[LM_HEAD].labels.cpu().numpy()
        log_noise = self.settings.power * unigram
        log_noise = log_noise - np.logaddexp.reduce(log_noise)
        scores = (unigram - log_noise - np.log(self.settings.negatives))[labels]
        losses = np.logaddexp(0, -scores[:, 0]) + np.logaddexp(0, scores[:, 1:]).sum(1)
        return {self.name: float(losses.mean())}
