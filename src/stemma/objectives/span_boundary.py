"""The span boundary objective: guess what masked language modelling hid, not from where it stood but from the two
places around it (SpanBERT, arXiv:1907.10529). So the edges of a span learn to stand for all of it.

A span is a run of hidden tokens, as `masked_lm` left it: runs that meet are one.
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
    """SpanBERT: guess each token of a hidden span from the two places around the span and its number within it."""

    kind: Literal["span_boundary"]
    places: Count = 15  # how many numbers there are (as released); a longer span's rest shares the last

    sees: ClassVar[AttentionMaskKind] = "full"
    needs_masked_tokens = True

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return packing_names(contiguous=False)

    def recipe_conflicts(self, name: str, recipe: RecipeSettings) -> Iterator[Conflict]:
        """There must be a position on either side of each span, and one matrix that scores all tokens."""
        if recipe.network.embedding.cutoffs:
            what = "one matrix for all tokens, and network.embedding.cutoffs parts it"
            yield (ConflictKey(f"objective.{name}", f"needs {what}"),
                   ConflictKey("network.embedding.cutoffs", f"objective.{name} needs {what}"))
        for key, template in recipe.templates().items():
            slots = [slot.name for slot in parse_template(template)]
            if key.startswith(("corpus.", f"objective.{name}.")) and {slots[0], slots[-1]} & {"A", "B"}:
                what = "a special token on either side of the text"
                yield (ConflictKey(key, f"objective.{name} needs {what}"),
                       ConflictKey(f"objective.{name}", f"needs {what}"))


@register("objective", "span_boundary", SpanBoundarySettings)
class SpanBoundary(Objective):
    settings: SpanBoundarySettings

    def requirements(self) -> Requirements:
        from stemma.network.span_boundary_head import SpanBoundaryHeadSpec

        return Requirements(heads={HEAD_NAME: SpanBoundaryHeadSpec(self.settings.places)})

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """Nothing more is hidden; the places around each span must be computed to the end, though nothing is guessed
        there."""
        hidden = np.zeros(draft.input_ids.shape, dtype=bool)
        hidden.reshape(-1)[draft.token_targets[LM_HEAD].index] = True
        around = np.zeros(hidden.shape, dtype=bool)
        around[:, :-1] |= hidden[:, 1:] & ~hidden[:, :-1]
        around[:, 1:] |= hidden[:, :-1] & ~hidden[:, 1:]
        draft.extra_outputs = around
        draft.add_token_targets(HEAD_NAME, at=hidden, labels=draft.original_ids)

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        from stemma.network.span_boundary_head import SpanBoundaryHead

        target, head = batch.token_targets[HEAD_NAME], network.heads[HEAD_NAME]
        assert isinstance(head, SpanBoundaryHead)
        places = output["encoder"].flatten(0, 1)
        left, right, number = span_edges(target)
        return {self.name: head.loss(places[left], places[right], number, target.labels, target.denominator)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        return {self.name: float(-unigram[batch.token_targets[HEAD_NAME].labels.cpu().numpy()].mean())}


def span_edges(target: Target) -> tuple[Tensor, Tensor, Tensor]:
    """(N,) each: the flat place before the span of every scored one, the place behind it, and its number within it."""
    import torch

    index, row = target.index, target.index // target.row_stride
    begins = torch.ones(len(index), dtype=torch.bool, device=index.device)
    begins[1:] = (index[1:] != index[:-1] + 1) | (row[1:] != row[:-1])
    ends = torch.ones_like(begins)
    ends[:-1] = begins[1:]
    span = begins.cumsum(0) - 1
    first, last = index[begins][span], index[ends][span]
    return first - 1, last + 1, index - first
