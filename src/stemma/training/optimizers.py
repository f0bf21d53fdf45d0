"""From a recipe's optimizer settings to a torch optimizer.

Weight decay pulls on matrices only: a bias or a norm's gain has no reason to be near zero (BERT, arXiv:1810.04805).
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Adam, Adamax, AdamW, Optimizer

from stemma.schema import training as schema
from stemma.training.adafactor import Adafactor
from stemma.training.lamb import Lamb


def build_optimizer(network: nn.Module, settings: schema.OptimizerSettings, learning_rate: float) -> Optimizer:
    """The optimizer over all trainable parameters (a tied one once): a group of matrices and one of vectors."""
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    matrices: dict[str, Any] = {"params": [p for p in trainable if p.ndim >= 2]}
    vectors: dict[str, Any] = {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0}
    groups = [group for group in (matrices, vectors) if group["params"]]
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
            # As in the authors' code, vectors take plain steps: a bias starts at zero, and steps in proportion to its
            # own size would keep it there.
            vectors["adapt"] = False
            return Lamb(groups, learning_rate, (settings.beta1, settings.beta2), settings.epsilon,
                        settings.weight_decay)
        case schema.Adafactor():
            return Adafactor(groups, learning_rate, settings.beta2_decay, settings.clip,
                             (settings.epsilon, settings.least_scale), settings.weight_decay, settings.relative)


def set_learning_rate(optimizer: Optimizer, value: float) -> None:
    """What the loop does before every update."""
    for group in optimizer.param_groups:
        group["lr"] = value
