"""StableAdamW: AdamW with update clipping (arXiv:2304.13013, algorithm 2).

If the squared gradients of a tensor exceed their running mean on average, its learning rate is divided by the root of
that ratio, as in Adafactor; gradients need no clipping. Like `optimi`, with which ModernBERT and Ettin were trained, it
applies the bias correction to the betas, and clips the weight decay with the update.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from stemma.training.optimizer_base import OptimizerBase


class StableAdamW(OptimizerBase):
    def __init__(self, parameters: Iterable[Any], lr: float, betas: tuple[float, float] = (0.9, 0.98),
                 eps: float = 1e-6, weight_decay: float = 0.01):
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def update_parameters(self) -> None:
        for group in self.param_groups:
            self._step_group(group)

    def _step_group(self, group: dict[str, Any]) -> None:
        parameters, gradients, means, squares, steps = self.moments(group)
        if not parameters:
            return
        beta1, beta2 = group["betas"]
        betas1, betas2 = ([_debiased(beta, step) for step in steps] for beta in (beta1, beta2))

        torch._foreach_mul_(means, betas1)
        torch._foreach_add_(means, torch._foreach_mul(gradients, [1 - beta for beta in betas1]))
        squared = torch._foreach_mul(gradients, gradients)
        torch._foreach_mul_(squares, betas2)
        torch._foreach_add_(squares, torch._foreach_mul(squared, [1 - beta for beta in betas2]))

        torch._foreach_div_(squared, torch._foreach_clamp_min(squares, group["eps"] ** 2))
        excess = torch.stack([ratio.mean() for ratio in squared]).sqrt_().clamp_(min=1.0).tolist()
        learning_rates = [group["lr"] / ratio for ratio in excess]
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, [1 - lr * group["weight_decay"] for lr in learning_rates])
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_addcdiv_(parameters, means, roots, [-lr for lr in learning_rates])


def _debiased(beta: float, step: float) -> float:
    """Beta with built-in bias correction: 0 at the first step."""
    return float((beta - beta**step) / (1 - beta**step))
