"""Adafactor: a matrix's second moments are kept as a row and a column, so that memory grows with n + m, not n * m.

arXiv:1804.04235, algorithms 4 and 5, with the step size given from outside as T5 has it: the learning rate is
relative, each tensor moves by that share of its own root mean square. torch.optim.Adafactor is not used because it caps
the rate at 1 / sqrt(step), whatever the schedule says, and clamps where the paper adds epsilon.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from stemma.training.optimizer_base import OptimizerBase


class Adafactor(OptimizerBase):
    """`eps` is the paper's pair: what is added to squared gradients, and the least size a tensor is taken to have.

    With `relative = False` the rate is absolute, as in the other optimizers.
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

    # One tensor at a time: temporaries are as large as the tensor, and memory is what this optimizer is chosen for.
    def _step_tensor(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self._state_of(parameter)
        state["step"] += 1
        keep = 1 - state["step"].item() ** -group["beta2_decay"]  # 0 at the first step: no bias to correct
        squared = gradient.square().add_(group["eps"][0])
        if "row" in state:
            row = state["row"].lerp_(squared.mean(dim=-1, keepdim=True), 1 - keep)  # (..., n, 1)
            column = state["column"].lerp_(squared.mean(dim=-2, keepdim=True), 1 - keep)  # (..., 1, m)
            update = gradient * (row / row.mean(dim=-2, keepdim=True)).rsqrt_()
            update *= column.rsqrt()
        else:
            update = gradient * state["square"].lerp_(squared, 1 - keep).rsqrt()
        update /= (_root_mean_square(update) / group["clip"]).clamp_(min=1.0)
        rate = group["lr"] * (_root_mean_square(parameter).clamp_(min=group["eps"][1]) if group["relative"] else 1.0)
        if group["weight_decay"]:
            parameter *= 1 - group["weight_decay"] * rate
        parameter -= update.mul_(rate)

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)  # kept on the CPU: it is read as a number at every step
            if parameter.ndim >= 2:
                state["row"] = torch.zeros_like(parameter[..., :1])
                state["column"] = torch.zeros_like(parameter[..., :1, :])
            else:
                state["square"] = torch.zeros_like(parameter)
        return state


def _root_mean_square(tensor: Tensor) -> Tensor:
    found: Tensor = tensor.norm() / tensor.numel() ** 0.5
    return found
