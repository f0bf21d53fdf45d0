"""The span-boundary objective: predict each masked token from the two positions around its span (SpanBERT,
arXiv:1907.10529), so that the boundaries learn to represent the span.

A span is a run of tokens masked by `masked_lm`; adjacent runs are one span.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from stemma.objectives.base import LM_HEAD, Objective, Requirements
from stemma.registry import register
from stemma.schema.base import Conflict, ConflictKey, Count
from stemma.schema.corpus import packing_names, parse_template
from stemma.schema.objective import AttentionMaskKind, ObjectiveSettings

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG
    from stemma.network.inputs_outputs import NetworkOutput
    from stemma.network.network import Network
    from stemma.objectives.batch import Batch, Target
    from stemma.schema.recipe import RecipeSettings

HEAD_NAME = "span_boundary"


class SpanBoundarySettings(ObjectiveSettings):
    """SpanBERT: predict each token of a masked span from the two positions around it and its offset in it."""

    kind: Literal["span_boundary"]
    places: Count = 15  # number of relative position embeddings (as released); later positions share the last

    attention_mask: ClassVar[AttentionMaskKind] = "full"
    needs_masked_tokens = True

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return packing_names(contiguous=False)

    def recipe_conflicts(self, name: str, recipe: RecipeSettings) -> Iterator[Conflict]:
        """There must be a position on either side of each span, and one matrix that scores all tokens."""
        if recipe.network.embedding.cutoffs:
            requirement = "one matrix for all tokens, and network.embedding.cutoffs splits it"
            yield (ConflictKey(f"objective.{name}", f"needs {requirement}"),
                   ConflictKey("network.embedding.cutoffs", f"objective.{name} needs {requirement}"))
        for key, template in recipe.templates().items():
            slots = [slot.name for slot in parse_template(template)]
            if key.startswith(("corpus.", f"objective.{name}.")) and {slots[0], slots[-1]} & {"A", "B"}:
                requirement = "a special token on either side of the text"
                yield (ConflictKey(key, f"objective.{name} needs {requirement}"),
                       ConflictKey(f"objective.{name}", f"needs {requirement}"))


@register("objective", "span_boundary", SpanBoundarySettings)
class SpanBoundary(Objective):
    settings: SpanBoundarySettings

    def requirements(self) -> Requirements:
        from stemma.network.span_boundary_head import SpanBoundaryHeadSpec

        return Requirements(heads={HEAD_NAME: SpanBoundaryHeadSpec(self.settings.places)})

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """No token is masked here. The positions around each span need outputs, although they have no labels."""
        masked = np.zeros(draft.input_ids.shape, dtype=bool)
        masked.reshape(-1)[draft.token_targets[LM_HEAD].index] = True
        boundary = np.zeros(masked.shape, dtype=bool)
        boundary[:, :-1] |= masked[:, 1:] & ~masked[:, :-1]
        boundary[:, 1:] |= masked[:, :-1] & ~masked[:, 1:]
        draft.extra_outputs = boundary
        draft.add_token_targets(HEAD_NAME, at=masked, labels=draft.original_ids)

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        from stemma.network.span_boundary_head import SpanBoundaryHead

        target, head = batch.token_targets[HEAD_NAME], network.heads[HEAD_NAME]
        assert isinstance(head, SpanBoundaryHead)
        hidden = output["encoder"].flatten(0, 1)
        left, right, offset = span_edges(target)
        return {self.name: head.loss(hidden[left], hidden[right], offset, target.labels, target.denominator)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: float(-unigram[batch.token_targets[HEAD_NAME].labels.cpu().numpy()].mean())}


def span_edges(target: Target) -> tuple[Tensor, Tensor, Tensor]:
    """(N,) each, for every scored position: flat positions before and after its span, and its offset in the span."""
    import torch

    index, row = target.index, target.index // target.row_stride
    is_first = torch.ones(len(index), dtype=torch.bool, device=index.device)
    is_first[1:] = (index[1:] != index[:-1] + 1) | (row[1:] != row[:-1])
    is_last = torch.ones_like(is_first)
    is_last[:-1] = is_first[1:]
    span = is_first.cumsum(0) - 1
    first, last = index[is_first][span], index[is_last][span]
    return first - 1, last + 1, index - first
