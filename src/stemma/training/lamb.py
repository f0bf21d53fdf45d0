"""LAMB: layer-wise adaptive learning rates for very large batches (arXiv:1904.00962).

Adam's direction plus weight decay is rescaled per tensor by the trust ratio: the weight's norm over the direction's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from stemma.training.optimizer_base import OptimizerBase


class Lamb(OptimizerBase):
    """Algorithm 2 of the paper's final version (bias correction included; the paper's phi is the identity).

    A group with `adapt = False` takes plain AdamW steps.
    """

    def __init__(self, parameters: Iterable[Any], lr: float, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-6, weight_decay: float = 0.01, adapt: bool = True):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adapt": adapt}
        super().__init__(parameters, defaults)

    def update_parameters(self) -> None:
        for group in self.param_groups:
            self._step_group(group)

    def _step_group(self, group: dict[str, Any]) -> None:
        parameters, gradients, means, squares, steps = self.moments(group)
        if not parameters:
            return
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)

        roots = torch._foreach_div(squares, [1 - beta2**t for t in steps])
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, group["eps"])
        directions = torch._foreach_div(means, [1 - beta1**t for t in steps])
        torch._foreach_div_(directions, roots)
        if group["weight_decay"]:
            torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
        if group["adapt"]:
            torch._foreach_mul_(directions, _trust_ratios(parameters, directions))
        torch._foreach_add_(parameters, directions, alpha=-group["lr"])


def _trust_ratios(parameters: list[Tensor], directions: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The weight's norm over the direction's norm; 1 where either is zero (a tensor that starts at zero must move)."""
    weight_norms = torch._foreach_norm(parameters)
    direction_norms = torch._foreach_norm(directions)
    return tuple(torch.where((weight > 0) & (direction > 0), weight / direction, 1.0)
                 for weight, direction in zip(weight_norms, direction_norms, strict=True))
