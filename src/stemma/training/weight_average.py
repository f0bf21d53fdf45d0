"""Exponential moving average of the weights (EMA, arXiv:1806.05594 and earlier Polyak averaging).

After each step, average = decay x average + (1 - decay) x weights. Late in training the weights oscillate around an
optimum and their average is nearer to it. In the first steps the decay is smaller, (1 + step) / (10 + step), so that a
short run does not remember its initial weights.

`TriggeredAverage` is the plain mean of the weights of all steps since some validation.

Validation, the best weights under `keep_best` and `model/` use the average. A checkpoint holds the live weights, from
which training continues, and the average beside the optimizer state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

PREFIX = "average/"


class WeightAverage:
    """The average of all parameters of a network, in their own precision."""

    def __init__(self, network: nn.Module, decay: float):
        self.decay, self.num_updates = decay, 0
        self.parameters = dict(network.named_parameters())
        self.averages = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        self._live: dict[str, Tensor] | None = None  # the live weights, while the network has the average

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the weights, after an optimizer step."""
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        self.num_updates += 1
        torch._foreach_lerp_(list(self.averages.values()), list(self.parameters.values()), 1 - decay)

    def copy_to_network(self) -> None:
        """Replace the weights of the network by their average."""
        self._copy(self.averages)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside the context the network has the averaged weights."""
        if self._live is not None:
            yield
            return
        self._live = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        self.copy_to_network()
        try:
            yield
        finally:
            self._copy(self._live)
            self._live = None

    @contextmanager
    def live_weights(self) -> Iterator[None]:
        """Inside the context the network has its live weights, also within `applied`: a checkpoint stores them."""
        live, self._live = self._live, None
        if live is None:
            yield
            return
        self._copy(live)
        try:
            yield
        finally:
            self.copy_to_network()
            self._live = live

    @torch.no_grad()
    def _copy(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(weights[name])

    def tensors(self) -> dict[str, Tensor]:
        """The average, for a checkpoint."""
        return {PREFIX + name: tensor for name, tensor in self.averages.items()}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor], num_updates: int) -> None:
        self.num_updates = num_updates
        for name, average in self.averages.items():
            average.copy_(tensors[PREFIX + name])


class TriggeredAverage(WeightAverage):
    """The mean of the weights of all steps since a validation that was no better than the best up to `patience`
    validations before it (NT-ASGD, arXiv:1708.02182, algorithm 1). Until then the live weights count."""

    def __init__(self, network: nn.Module, patience: int):
        super().__init__(network, decay=0.0)
        self.patience = patience
        self.losses: list[float] = []  # of all validations before the average began
        self.active = False

    def after_validation(self, loss: float) -> None:
        if self.active:
            return
        earlier = self.losses[:-self.patience]
        self.active = bool(earlier) and loss > min(earlier)
        self.losses.append(loss)

    @torch.no_grad()
    def update(self) -> None:
        if self.active:
            self.num_updates += 1
            torch._foreach_lerp_(list(self.averages.values()), list(self.parameters.values()), 1 / self.num_updates)

    def copy_to_network(self) -> None:
        if self.num_updates:
            super().copy_to_network()

    @contextmanager
    def applied(self) -> Iterator[None]:
        with super().applied() if self.num_updates else nullcontext():
            yield

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() if self.num_updates else {}

    def restore(self, tensors: dict[str, Tensor], num_updates: int) -> None:
        if num_updates:
            super().restore(tensors, num_updates)

    def restore_losses(self, losses: list[float]) -> None:
        """Decide again when the average begins."""
        for loss in losses:
            self.after_validation(loss)
