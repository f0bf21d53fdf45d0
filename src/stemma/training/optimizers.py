"""From a recipe's optimizer settings to a torch optimizer.

Weight decay pulls on matrices only: a bias or a norm's gain has no reason to be near zero (BERT, arXiv:1810.04805).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Adam, Adamax, AdamW, Optimizer

from stemma.schema import training as schema
from stemma.training.adafactor import Adafactor
from stemma.training.lamb import Lamb


def build_optimizer(network: nn.Module, settings: schema.OptimizerSettings, learning_rate: float,
                    rates: Mapping[str, float] | None = None) -> Optimizer:
    """The optimizer over all trainable parameters (a tied one once): a group of matrices and one of vectors; with
    `rates`, a share of the learning rate for each parameter's name, two groups for each share."""
    trainable = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    shares = [1.0] if rates is None else sorted({rates[name] for name, _ in trainable}, reverse=True)
    groups: list[dict[str, Any]] = []
    for share in shares:
        alike = [parameter for name, parameter in trainable if rates is None or rates[name] == share]
        groups += _groups(alike, {} if share == 1.0 else {"share": share, "lr": learning_rate * share}, settings)
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


def set_learning_rate(optimizer: Optimizer, value: float) -> None:
    """What the loop does before every update."""
    for group in optimizer.param_groups:
        group["lr"] = value * group.get("share", 1.0)
