"""What a training step costs, counted while it runs: the multiplications and additions of its matrix products.

torch counts them operator by operator, forward and backward. It knows the fused attention of graphics cards; that of a
CPU, and what else it does not know, is stated by the parts of a network (`flop_counts`). Additions of biases, norms and
the optimizer are not matrix products: they are left out, as in most papers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from stemma.corpus.shards import Corpus
from stemma.device import choose_device
from stemma.lineage import Recipe
from stemma.objectives import build_network, build_objectives
from stemma.training.passes import Passes
from stemma.training.supply import Supply

EACH = 4  # steps that are counted of every sort
LOOKED_AT = 1000  # steps, spread over the budget, show how often each sort comes: tasks take turns, join and leave


@dataclass(frozen=True)
class StepCost:
    flops: float
    tokens: float
    parameters: int


def step_cost(recipe: Recipe, corpus: Corpus) -> StepCost:
    """The mean over a run: its own batches through its own network, which is thrown away. A few steps of every sort
    are counted; how often each sort comes is known beforehand."""
    torch.manual_seed(0)
    network, device = build_network(recipe), choose_device()
    objectives = build_objectives(recipe)
    supply = Supply(recipe, corpus, objectives, seed=0)
    passes = Passes(network.to(device).train(), objectives, recipe.settings.training, device, torch.float32)
    sorts: dict[Any, list[int]] = {}
    for step in range(LOOKED_AT):
        used = step / LOOKED_AT
        sorts.setdefault(supply.kind_of(step, supply.length_at(used), used), []).append(step)
    flops, tokens, unknown = 0.0, 0.0, unknown_operators(recipe)
    try:
        for steps in sorts.values():
            for step in steps[:EACH]:
                used = step / LOOKED_AT
                prepared = supply.take(step, supply.length_at(used), used)
                with FlopCounterMode(display=False, custom_mapping=unknown) as counter:
                    outcome = passes.train(prepared)
                passes.remember(prepared.feed, outcome.memory)
                network.zero_grad(set_to_none=True)
                share = len(steps) / LOOKED_AT / len(steps[:EACH])
                flops += share * counter.get_total_flops()
                tokens += share * prepared.batch.tokens
    finally:
        supply.close()
    return StepCost(flops, tokens, network.parameter_count())


def unknown_operators(recipe: Recipe) -> dict[Any, Callable[..., int]]:
    """How to count the operators of this network's parts that torch's counter does not know."""
    return {operator: count for _, part in recipe.settings.network.tables()
            for operator, count in part.flop_counts().items()}
