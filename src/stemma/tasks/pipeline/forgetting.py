"""Held-out loss after every stage, to measure forgetting.

Rows, masks and objective come from one recipe and are the same each time; only the weights change. After fine-tuning,
the language model head of the previous stage is restored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stemma.corpus.corpus import Corpus
from stemma.corpus.subset import train_validation_split
from stemma.device import choose_device
from stemma.exchange.load import find_generator, load
from stemma.network.cache import State
from stemma.network.network import Network
from stemma.objectives import build_network, build_objectives
from stemma.recipe_loading import Recipe
from stemma.training.forward_backward import ForwardBackward
from stemma.training.pretrain_loader import PretrainLoader
from stemma.training.weight_transfer import transfer_weights


def load_state(model: str | Path) -> dict[str, Tensor]:
    """All weights of a model folder, including its generator (ELECTRA)."""
    weights = dict(load(model).network.state_dict())
    if (generator := find_generator(model)) is not None:
        weights |= {f"generator.{name}": tensor for name, tensor in load(generator).network.state_dict().items()}
    return weights


def build_with_weights(recipe: Recipe, weights: Mapping[str, Tensor],
                       head_source: Mapping[str, Tensor] | None = None) -> Network | None:
    """The recipe's network with these weights, and missing heads from `head_source`; None if weights are still missing,
    as in a checkpoint without a language model head."""
    network = build_network(recipe)
    heads = {name for group in network.parameter_groups() if group.name.startswith("head.")
             for name in group.parameters}
    borrowed = {name: tensor for name, tensor in (head_source or {}).items() if name in heads}
    initial_state = network.state_dict()
    fitting = {name: tensor for name, tensor in {**borrowed, **weights}.items()
               if name in initial_state and initial_state[name].shape == tensor.shape}
    return None if transfer_weights(fitting, network).missing_keys else network.eval()


@torch.inference_mode()
def held_out_loss(recipe: Recipe, network: Network, corpus: Corpus) -> float | None:
    """Held-out loss in nats per predicted token, over the objectives that predict tokens; None: no held-out text."""
    objectives = build_objectives(recipe)
    token_objectives = [objective for objective in objectives if objective.predicts_tokens] or objectives
    loader = PretrainLoader(recipe, corpus, objectives, seed=0)
    device = choose_device()
    passes = ForwardBackward(network.to(device), objectives, recipe.settings.training, device, torch.float32)
    torch.manual_seed(0)  # the generator samples (ELECTRA)
    sums: dict[str, list[float]] = {}
    state: State | None = None
    try:
        for group, batch in loader.validation_batches(loader.sequence_length_at(1.0)):
            step = passes.compute_losses(group, batch, state if batch.continues_previous else None)
            state = step.state
            for objective in group:
                sums.setdefault(objective.name, []).append(float(step.losses[objective.name]))
    finally:
        loader.close()
    scored = [objective for objective in token_objectives if objective.name in sums]
    if not scored:
        return None
    total = sum(float(np.mean(sums[objective.name])) * objective.weight for objective in scored)
    return total / sum(objective.weight for objective in scored)


def bits_per_byte(recipe: Recipe, corpus: Corpus, loss: float | None) -> float | None:
    """The loss in bits per byte, which does not depend on the vocabulary; only for causal language models."""
    objectives = build_objectives(recipe)
    if loss is None or recipe.settings.network.decoder is not None or not all(
            objective.predicts_next for objective in objectives):
        return None
    held_out = train_validation_split(corpus, recipe.settings.corpus.validation)[1].document_ranges
    indices = np.unique(np.searchsorted(corpus.document_starts, held_out[:, 0], side="right") - 1)
    num_tokens = int((corpus.document_starts[indices + 1] - corpus.document_starts[indices]).sum())
    num_bytes = sum(len(corpus.document_text(int(index)).encode()) for index in indices)
    return loss / math.log(2) * num_tokens / num_bytes if num_bytes else None
