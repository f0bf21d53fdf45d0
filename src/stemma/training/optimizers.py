"""From a recipe's optimizer settings to a torch optimizer.

Weight decay pulls on matrices only: a bias or a norm's gain has no reason to be near zero (BERT, arXiv:1810.04805).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, Adamax, AdamW, Optimizer

from stemma.errors import UserError
from stemma.network.block import Block
from stemma.schema import training as schema
from stemma.training.adafactor import Adafactor
from stemma.training.lamb import Lamb
from stemma.training.muon import Muon
from stemma.training.precision import resolve_precision
from stemma.training.stable_adamw import StableAdamW


def build_optimizer(network: nn.Module, settings: schema.OptimizerSettings, learning_rate: float,
                    rates: Mapping[str, float] | None = None, precision: torch.dtype = torch.float32) -> Optimizer:
    """The optimizer over all trainable parameters (a tied one once): a group of matrices and one of vectors; with
    `rates`, a share of the learning rate for each parameter's name, two groups for each share."""
    trainable = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    shares = [1.0] if rates is None else sorted({rates[name] for name, _ in trainable}, reverse=True)
    hidden = hidden_matrices(network) if isinstance(settings, schema.Muon) else {}
    groups: list[dict[str, Any]] = []
    for share in shares:
        alike = [parameter for name, parameter in trainable if rates is None or rates[name] == share]
        if isinstance(settings, schema.Muon):
            groups += _hidden_group(alike, hidden, _at(learning_rate, share))
            alike, share = [p for p in alike if p not in hidden], share * settings.adamw_learning_rate / learning_rate
        groups += _groups(alike, _at(learning_rate, share), settings)
    match settings:
        case schema.AdamW():
            return AdamW(groups, learning_rate, (settings.beta1, settings.beta2), settings.epsilon,
                         settings.weight_decay, fused=True)
        case schema.Adam():
            return Adam(groups, learning_rate, (settings.beta1, settings.beta2), settings.epsilon, fused=True)
        case schema.Adamax():
            return Adamax(groups, learning_rate, (settings.beta1, settings.beta2), settings.epsilon,
                          settings.weight_decay)
        case schema.Lamb():
            return Lamb(groups, learning_rate, (settings.beta1, settings.beta2), settings.epsilon,
                        settings.weight_decay)
        case schema.Adafactor():
            return Adafactor(groups, learning_rate, settings.beta2_decay, settings.clip,
                             (settings.epsilon, settings.least_scale), settings.weight_decay, settings.relative)
        case schema.StableAdamW():
            return StableAdamW(groups, learning_rate, (settings.beta1, settings.beta2), settings.epsilon,
                               settings.weight_decay)
        case schema.Muon():
            if not any("parts" in group for group in groups):
                raise UserError("training.optimizer.kind = muon is for the matrices of hidden layers, and none of them "
                                "learns here; take training.optimizer.kind=adamw or freeze fewer layers.")
            return Muon(groups, learning_rate, settings.momentum, settings.nesterov, settings.iterations,
                        settings.scale, (settings.beta1, settings.beta2), settings.epsilon, settings.weight_decay,
                        _fast(precision, trainable[0][1].device))


def hidden_matrices(network: nn.Module) -> dict[Tensor, int]:
    """The matrices of the linear maps in all blocks, each with how many stand in it, row upon row: query, key and value
    are one product and three matrices (`joined`, by name of the map)."""
    found: dict[Tensor, int] = {}
    for module in (part for block in network.modules() if isinstance(block, Block) for part in block.modules()):
        joined: dict[str, int] = getattr(module, "joined", {})
        found |= {child.weight: joined.get(name, 1) for name, child in module.named_children()
                  if isinstance(child, nn.Linear)}
    return found


def _at(learning_rate: float, share: float) -> dict[str, float]:
    return {} if share == 1.0 else {"share": share, "lr": learning_rate * share}


def _hidden_group(parameters: Sequence[Tensor], hidden: Mapping[Tensor, int],
                  values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Muon's own, if there are any."""
    chosen = [p for p in parameters if p in hidden]
    return [{"params": chosen, "parts": [hidden[p] for p in chosen], **values}] if chosen else []


def _groups(parameters: Sequence[Tensor], values: Mapping[str, Any],
            settings: schema.OptimizerSettings) -> list[dict[str, Any]]:
    """Matrices, and vectors; of either, if there are any."""
    matrices = {"params": [p for p in parameters if p.ndim >= 2], **values}
    vectors = {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0, **values}
    if isinstance(settings, schema.Lamb):
        # As in the authors' code, vectors take plain steps: a bias starts at zero, and steps in proportion to its own
        # size would keep it there.
        vectors["adapt"] = False
    return [group for group in (matrices, vectors) if group["params"]]


def _fast(precision: torch.dtype, device: torch.device) -> torch.dtype:
    """For products that bear bf16: only where a run computes in it and the hardware does not imitate it."""
    return precision if resolve_precision("auto", device) == precision else torch.float32


def set_learning_rate(optimizer: Optimizer, value: float) -> None:
    """What the loop does before every update."""
    for group in optimizer.param_groups:
        group["lr"] = value * group.get("share", 1.0)
