"""Weights of one network put into another: a stage that goes on from a model, a fine-tune, a head that is lent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from stemma.network.network import POOLER, Network

TOKEN_EMBEDDING = "embedding.tokens.weight"


@dataclass(frozen=True)
class TransferReport:
    missing_keys: list[str]  # parameters of the network that the weights do not have: they stay as they were drawn
    unexpected_keys: list[str]  # weights that the network has no parameter for


def transfer_weights(weights: Mapping[str, Tensor], network: Network, *, reinit_layers: int = 0,
                     without_heads: Collection[str] = (),
               grow: bool = False) -> TransferReport:
    """Fill the network. What is left as drawn: the `fresh` highest layers, with the pooler that was fitted to them, and
    some heads. `grow`: a token embedding with fewer rows, or an input's array of tokens, fills the first ones."""
    drawn = reinitialized_names(network, reinit_layers) | {name for group in network.parameter_groups()
                                                           for name in group.parameters
                                           if group.name in {f"head.{head}" for head in without_heads}}
    chosen = {name: tensor for name, tensor in weights.items() if name not in drawn}
    own = dict(network.named_parameters())
    if grow:
        grown = network.state_dict()
        for name in (name for name in chosen if name in grown and name.startswith(tuple(_by_token(network)))):
            if chosen[name].shape[1:] == grown[name].shape[1:]:
                chosen[name] = torch.cat([chosen[name], grown[name][len(chosen[name]):]])
    missing, unused = network.load_state_dict(chosen, strict=False)
    heads = tuple(f"heads.{head}." for head in without_heads)
    return TransferReport([name for name in missing if name in own and name not in weights],
                      [name for name in unused if not (heads and name.startswith(heads))])


def _by_token(network: Network) -> list[str]:
    """How the names begin of what has a row for each token."""
    inputs = [name for name, one in network.embedding.reading.items() if one.from_ids]
    return [TOKEN_EMBEDDING, *(f"embedding.inputs.{name}." for name in inputs)]


def reinitialized_names(network: Network, reinit_layers: int) -> set[str]:
    """The parameters of the `fresh` highest layers, and of the pooler above them."""
    highest = network.num_layers
    return {name for group in network.parameter_groups() for name in group.parameters
            if reinit_layers and (highest - reinit_layers < group.layer_index <= highest or group.name
                                  == f"head.{POOLER}")}
