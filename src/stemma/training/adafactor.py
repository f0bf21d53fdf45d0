"""Adafactor: factored second moments, a row and a column per matrix, so that memory grows with n + m, not n * m.

arXiv:1804.04235, algorithms 4 and 5, with the learning rate of an external schedule as in T5: it is relative to the
root mean square of each tensor. torch.optim.Adafactor is not used because it caps the learning rate at 1 / sqrt(step),
whatever the schedule, and clamps where the paper adds epsilon.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from stemma.training.optimizer_base import OptimizerBase


class Adafactor(OptimizerBase):
    """`eps` is the paper's pair: added to squared gradients, and the lower bound of a tensor's root mean square.

    With `relative = False` the learning rate is absolute, as in the other optimizers.
    """

    def __init__(self, parameters: Iterable[Any], lr: float, beta2_decay: float = 0.8, clip: float = 1.0,
                 eps: tuple[float, float] = (1e-30, 1e-3), weight_decay: float = 0.0, relative: bool = True):
        defaults = {"lr": lr, "beta2_decay": beta2_decay, "clip": clip, "eps": eps, "weight_decay": weight_decay,
                    "relative": relative}
        super().__init__(parameters, defaults)

    def update_parameters(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_tensor(parameter, parameter.grad, group)

    # One tensor at a time: temporaries are as large as the tensor, and this optimizer is for saving memory.
    def _step_tensor(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self._state_of(parameter)
        state["step"] += 1
        beta2 = 1 - state["step"].item() ** -group["beta2_decay"]  # 0 at the first step: no bias to correct
        squared = gradient.square().add_(group["eps"][0])
        if "row" in state:
            row = state["row"].lerp_(squared.mean(dim=-1, keepdim=True), 1 - beta2)  # (..., n, 1)
            column = state["column"].lerp_(squared.mean(dim=-2, keepdim=True), 1 - beta2)  # (..., 1, m)
            update = gradient * (row / row.mean(dim=-2, keepdim=True)).rsqrt_()
            update *= column.rsqrt()
        else:
            update = gradient * state["square"].lerp_(squared, 1 - beta2).rsqrt()
        update /= (_root_mean_square(update) / group["clip"]).clamp_(min=1.0)
        scale = _root_mean_square(parameter).clamp_(min=group["eps"][1]) if group["relative"] else 1.0
        learning_rate = group["lr"] * scale
        if group["weight_decay"]:
            parameter *= 1 - group["weight_decay"] * learning_rate
        parameter -= update.mul_(learning_rate)

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)  # on the CPU: every step reads its value
            if parameter.ndim >= 2:
                state["row"] = torch.zeros_like(parameter[..., :1])
                state["column"] = torch.zeros_like(parameter[..., :1, :])
            else:
                state["square"] = torch.zeros_like(parameter)
        return state


def _root_mean_square(tensor: Tensor) -> Tensor:
    rms: Tensor = tensor.norm() / tensor.numel() ** 0.5
    return rms
