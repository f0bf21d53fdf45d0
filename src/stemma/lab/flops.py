"""FLOPs of a training step, counted while it runs: the multiplications and additions of its matrix products.

torch's FlopCounterMode counts operators, forward and backward. It knows fused attention on GPUs; the parts of a network
state the counts of other operators, such as fused attention on a CPU (`flop_counts`). Biases, norms and the optimizer
are not matrix products and are not counted, as in most papers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from stemma.corpus.corpus import Corpus
from stemma.corpus.subset import train_validation_split
from stemma.device import choose_device
from stemma.objectives import build_network, build_objectives
from stemma.recipe_loading import Recipe
from stemma.training.forward_backward import ForwardBackward
from stemma.training.pretrain_loader import PretrainLoader

STEPS_PER_KIND = 4  # counted steps of each kind: kinds differ in objectives and sequence length
SAMPLED_STEPS = 1000  # steps, spread over the budget, from which the frequency of each kind is estimated


@dataclass(frozen=True)
class StepCost:
    flops: float
    tokens: float
    parameters: int


def step_cost(recipe: Recipe, corpus: Corpus) -> StepCost:
    """The mean cost over a run, with its own batches and a temporary network. STEPS_PER_KIND steps of each kind are
    counted and weighted by how frequent the kind is."""
    if recipe.settings.network.depth.counts:  # no matrix product: counting sorts and adds
        per_step = recipe.settings.training.batch_size * recipe.settings.corpus.sequence_length
        return StepCost(0.0, float(min(per_step, training_tokens(recipe, corpus))), 0)
    torch.manual_seed(0)
    network, device = build_network(recipe), choose_device()
    objectives = build_objectives(recipe)
    loader = PretrainLoader(recipe, corpus, objectives, seed=0)
    forward_backward = ForwardBackward(network.to(device).train(), objectives, recipe.settings.training, device,
                                       torch.float32)
    steps_by_kind: dict[Any, list[int]] = {}
    for step in range(SAMPLED_STEPS):
        progress = step / SAMPLED_STEPS
        signature = loader.step_signature(step, loader.sequence_length_at(progress), progress)
        steps_by_kind.setdefault(signature, []).append(step)
    flops, tokens, extra_counters = 0.0, 0.0, extra_flop_counters(recipe)
    try:
        for steps in steps_by_kind.values():
            counted = steps[:: max(1, len(steps) // STEPS_PER_KIND)][:STEPS_PER_KIND]  # spread: batches may grow
            for step in counted:
                progress = step / SAMPLED_STEPS
                prepared = loader.get_batch(step, loader.sequence_length_at(progress), progress)
                with FlopCounterMode(display=False, custom_mapping=extra_counters) as counter:
                    result = forward_backward.forward_backward(prepared)
                forward_backward.store_memory(prepared.sampler_key, result.memory)
                network.zero_grad(set_to_none=True)
                weight = len(steps) / SAMPLED_STEPS / len(counted)
                flops += weight * counter.get_total_flops()
                tokens += weight * prepared.batch.num_tokens
    finally:
        loader.close()
    return StepCost(flops, tokens, network.parameter_count())


def training_tokens(recipe: Recipe, corpus: Corpus) -> int:
    """Tokens of the text that this recipe is trained on."""
    return train_validation_split(corpus, recipe.settings.corpus.validation)[0].num_tokens


def extra_flop_counters(recipe: Recipe) -> dict[Any, Callable[..., int]]:
    """FLOP counts of operators that torch's counter does not know."""
    return {operator: count for _, part in recipe.settings.network.subtables()
            for operator, count in part.flop_counts().items()}
