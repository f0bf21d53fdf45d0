"""Copy the weights of one network into another: further pre-training, fine-tuning, or reusing a head."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from stemma.network.network import POOLER, Network

TOKEN_EMBEDDING = "embedding.tokens."


@dataclass(frozen=True)
class TransferReport:
    missing_keys: list[str]  # parameters without weights: they keep their random initialization
    unexpected_keys: list[str]  # weights without a parameter in the network


def transfer_weights(weights: Mapping[str, Tensor], network: Network, *, reinit_layers: int = 0,
                     without_heads: Collection[str] = (), grow: bool = False) -> TransferReport:
    """Load the weights into the network, except for the top `reinit_layers` layers with the pooler on them, and the
    heads in `without_heads`. With `grow`, a token embedding (or another input by token) may have fewer rows than the
    network's: it fills the first rows."""
    skipped_heads = {f"head.{head}" for head in without_heads}
    skipped = reinitialized_names(network, reinit_layers) | {
        name for group in network.parameter_groups() for name in group.parameters if group.name in skipped_heads}
    loaded = {name: tensor for name, tensor in weights.items() if name not in skipped}
    parameters = dict(network.named_parameters())
    if grow:
        current = network.state_dict()
        prefixes = tuple(_prefixes_per_token(network))
        for name in (name for name in loaded if name in current and name.startswith(prefixes)):
            if loaded[name].shape[1:] == current[name].shape[1:]:
                loaded[name] = torch.cat([loaded[name], current[name][len(loaded[name]):]])
    missing, unused = network.load_state_dict(loaded, strict=False)
    heads = tuple(f"heads.{head}." for head in without_heads)
    return TransferReport([name for name in missing if name in parameters and name not in weights],
                          [name for name in unused if not (heads and name.startswith(heads))])


def _prefixes_per_token(network: Network) -> list[str]:
    """Name prefixes of tensors with one row per token."""
    inputs = [name for name, settings in network.embedding.input_settings.items() if settings.from_ids]
    return [TOKEN_EMBEDDING, *(f"embedding.inputs.{name}." for name in inputs)]


def reinitialized_names(network: Network, reinit_layers: int) -> set[str]:
    """Names of the parameters of the top `reinit_layers` layers, and of the pooler on them."""
    highest = network.num_layers
    return {name for group in network.parameter_groups() for name in group.parameters
            if reinit_layers and (highest - reinit_layers < group.layer_index <= highest
                                  or group.name == f"head.{POOLER}")}
