"""What a model loses on held-out text, asked with one yardstick after every stage: that is how forgetting is seen.

The rows, the masks and the objective are those of one recipe and the same each time; only the weights change. Where a
fine-tune threw the language model's head away, the head of the stage before is put back on.
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
    """All that lies in a model's folder, the generator that it learned from included."""
    weights = dict(load(model).network.state_dict())
    if (beside := find_generator(model)) is not None:
        weights |= {f"generator.{name}": tensor for name, tensor in load(beside).network.state_dict().items()}
    return weights


def build_with_weights(recipe: Recipe, weights: Mapping[str, Tensor],
                 head_source: Mapping[str, Tensor] | None = None) -> Network | None:
    """The recipe's network with these weights, and with heads of a donor where they have none; None if something is
    still missing, as in a checkpoint without a language model's head."""
    network = build_network(recipe)
    heads = {name for group in network.parameter_groups() if group.name.startswith("head.")
             for name in group.parameters}
    lent = {name: tensor for name, tensor in (head_source or {}).items() if name in heads}
    ours = network.state_dict()
    fitting = {name: tensor for name, tensor in {**lent, **weights}.items()
               if name in ours and ours[name].shape == tensor.shape}
    return None if transfer_weights(fitting, network).missing_keys else network.eval()


@torch.inference_mode()
def held_out_loss(recipe: Recipe, network: Network, corpus: Corpus) -> float | None:
    """Nats a guess, over the tasks that guess tokens, on what the corpus holds out; None: it holds nothing out."""
    objectives = build_objectives(recipe)
    told = [one for one in objectives if one.predicts_tokens] or objectives
    supply = PretrainLoader(recipe, corpus, objectives, seed=0)
    device = choose_device()
    passes = ForwardBackward(network.to(device), objectives, recipe.settings.training, device, torch.float32)
    torch.manual_seed(0)  # a generator draws (ELECTRA): the same each time
    sums: dict[str, list[float]] = {}
    state: State | None = None
    try:
        for group, batch in supply.validation_batches(supply.sequence_length_at(1.0)):
            found = passes.compute_losses(group, batch, state if batch.continues_previous else None)
            state = found.state
            for one in group:
                sums.setdefault(one.name, []).append(float(found.losses[one.name]))
    finally:
        supply.close()
    chosen = [one for one in told if one.name in sums]
    if not chosen:
        return None
    return sum(float(np.mean(sums[one.name])) * one.weight for one in chosen) / sum(one.weight for one in chosen)


def bits_per_byte(recipe: Recipe, corpus: Corpus, loss: float | None) -> float | None:
    """The same loss in units that do not depend on the vocabulary; only where every token is guessed once, from what
    stands before it."""
    objectives = build_objectives(recipe)
    if loss is None or recipe.settings.network.decoder is not None or not all(one.predicts_next for one in objectives):
        return None
    held = train_validation_split(corpus, recipe.settings.corpus.validation)[1].document_ranges
    numbers = np.unique(np.searchsorted(corpus.document_starts, held[:, 0], side="right") - 1)
    whole = int((corpus.document_starts[numbers + 1] - corpus.document_starts[numbers]).sum())
    size = sum(len(corpus.document_text(int(number)).encode()) for number in numbers)
    return loss / math.log(2) * whole / size if size else None
