"""What a training step costs, counted while it runs: the multiplications and additions of its matrix products.

torch counts them operator by operator, forward and backward. It knows the fused attention of graphics cards; that of a
CPU is told to it here. Additions of biases, norms and the optimizer are not matrix products: they are left out, as in
most papers.
"""

from __future__ import annotations

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
    flops, tokens = 0.0, 0.0
    try:
        for steps in sorts.values():
            for step in steps[:EACH]:
                used = step / LOOKED_AT
                prepared = supply.take(step, supply.length_at(used), used)
                with FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter:
                    outcome = passes.train(prepared)
                passes.remember(prepared.feed, outcome.memory)
                network.zero_grad(set_to_none=True)
                share = len(steps) / LOOKED_AT / len(steps[:EACH])
                flops += share * counter.get_total_flops()
                tokens += share * prepared.batch.tokens
    finally:
        supply.close()
    return StepCost(flops, tokens, network.parameter_count())


def _attention(query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Scores and their mixture: two products. Shapes are (B, heads, places, width)."""
    batch, heads, queries, width = query
    keys, mixed = key[2], value[3]
    return 2 * batch * heads * queries * keys * (width + mixed)


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None,
                        **__: Any) -> int:
    """Two gradients for each product of the way forth. That the kernel computes the scores once more is its own affair:
    a recipe does not become dearer by the way it is computed."""
    return 2 * _attention(query, key, value)


CPU_ATTENTION = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
                 torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward}
