"""Base of our own optimizers: handles the closure and Adam's two moments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor
from torch.optim import Optimizer


class Moments(NamedTuple):
    """Running means of the gradients and of their squares for several parameters, before this step's update, and the
    step counts."""

    parameters: list[Tensor]
    gradients: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    steps: list[float]


class OptimizerBase(Optimizer):
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
        self.update_parameters()
        return loss

    @abstractmethod
    def update_parameters(self) -> None:
        """One step for every group."""

    def moments(self, group: dict[str, Any]) -> Moments:
        """Moments of the parameters with a gradient; increments their step counts."""
        parameters = [p for p in group["params"] if p.grad is not None]
        states = [self._state_of(p) for p in parameters]
        if states:
            torch._foreach_add_([s["step"] for s in states], 1.0)
        # per tensor: one without gradient for a while has fewer steps
        return Moments(parameters, [p.grad for p in parameters], [s["mean"] for s in states],
                       [s["square"] for s in states], [s["step"].item() for s in states])

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)  # on the CPU: every step reads its value
            state["mean"] = torch.zeros_like(parameter)
            state["square"] = torch.zeros_like(parameter)
        return state
