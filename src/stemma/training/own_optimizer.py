"""What the optimizers written here share: a closure that is asked first, and Adam's two moments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import overload

import torch
from torch import Tensor
from torch.optim import Optimizer


class OwnOptimizer(Optimizer):
    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.update()
        return loss

    @abstractmethod
    def update(self) -> None:
        """One step of every group."""

    def moments_of(self, parameter: Tensor) -> dict[str, Tensor]:
        """The number of steps, the mean of the gradients and of their squares."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)  # kept on the CPU: it is read as a number at every step
            state["mean"] = torch.zeros_like(parameter)
            state["square"] = torch.zeros_like(parameter)
        return state
