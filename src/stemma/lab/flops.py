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

from stemma.corpus.corpus import Corpus
from stemma.device import choose_device
from stemma.objectives import build_network, build_objectives
from stemma.recipe_loading import Recipe
from stemma.training.forward_backward import ForwardBackward
from stemma.training.pretrain_loader import PretrainLoader

STEPS_PER_KIND = 4  # steps that are counted of every sort
SAMPLED_STEPS = 1000  # steps, spread over the budget, show how often each sort comes: tasks take turns, join and leave


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
    supply = PretrainLoader(recipe, corpus, objectives, seed=0)
    passes = ForwardBackward(network.to(device).train(), objectives, recipe.settings.training, device, torch.float32)
    sorts: dict[Any, list[int]] = {}
    for step in range(SAMPLED_STEPS):
        used = step / SAMPLED_STEPS
        sorts.setdefault(supply.step_signature(step, supply.sequence_length_at(used), used), []).append(step)
    flops, tokens, unknown = 0.0, 0.0, extra_flop_counters(recipe)
    try:
        for steps in sorts.values():
            for step in steps[:STEPS_PER_KIND]:
                used = step / SAMPLED_STEPS
                prepared = supply.get_batch(step, supply.sequence_length_at(used), used)
                with FlopCounterMode(display=False, custom_mapping=unknown) as counter:
                    outcome = passes.forward_backward(prepared)
                passes.store_memory(prepared.sampler_key, outcome.memory)
                network.zero_grad(set_to_none=True)
                share = len(steps) / SAMPLED_STEPS / len(steps[:STEPS_PER_KIND])
                flops += share * counter.get_total_flops()
                tokens += share * prepared.batch.num_tokens
    finally:
        supply.close()
    return StepCost(flops, tokens, network.parameter_count())


def extra_flop_counters(recipe: Recipe) -> dict[Any, Callable[..., int]]:
    """How to count the operators of this network's parts that torch's counter does not know."""
    return {operator: count for _, part in recipe.settings.network.subtables()
            for operator, count in part.flop_counts().items()}
