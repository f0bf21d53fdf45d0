"""A training method: how a network learns from batches. Gradient descent is one; counting and closed forms are others.

The loop asks it for one step at a time and does everything else: budget, held-out loss, log, checkpoints, resume.
Whatever a method learns stands in the network, as parameters or buffers, which checkpoints and `model/` hold. What it
must remember besides (an optimizer's moments) it gives out as `state`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from stemma.network.network import Network
from stemma.schema.recipe import RecipeSettings
from stemma.training.budget import Budget
from stemma.training.forward_backward import ForwardBackward
from stemma.training.loader import PreparedBatch
from stemma.training.train_state import TrainState


class StepFailed(Exception):  # noqa: N818  (the loop turns it into `TrainingDivergedError`, once the state is saved)
    """A step that must not reach the weights: what the loss did, and what to try instead."""

    def __init__(self, problem: str, advice: str):
        super().__init__(problem)
        self.problem, self.advice = problem, advice


@dataclass(frozen=True)
class MethodSetup:
    """What a method works with."""

    network: Network
    settings: RecipeSettings
    forward_backward: ForwardBackward  # forward and backward, on the run's device and in its precision
    budget: Budget


class StepMetrics(NamedTuple):
    """What one step reports."""

    losses: dict[str, float]  # by objective
    metrics: dict[str, float]  # what the network tells of itself
    details: dict[str, Any]  # for the log: learning rate, gradient norm, ...


class MethodState(NamedTuple):
    """What a checkpoint holds of a method, besides the network."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]  # JSON, with the `kind` of the method or of its optimizer


class Method(ABC):
    def __init__(self, setup: MethodSetup):
        self.setup, self.network, self.forward_backward = setup, setup.network, setup.forward_backward

    @abstractmethod
    def train_step(self, prepared: PreparedBatch, state: TrainState, progress: float) -> StepMetrics:
        """One step: change the network by what a batch says, when this share of the budget is used. torch's random
        numbers are seeded by the step, so that a resumed run draws the same."""

    def set_train_mode(self) -> None:
        """Bring the network into training mode."""
        self.network.train()

    def warning(self) -> str | None:
        """What is to be told before the first step."""
        return None

    def state(self) -> MethodState:
        return MethodState({}, {"kind": type(self).__name__})

    def incompatibility(self, values: dict[str, object]) -> str | None:
        """Why a checkpoint with these values is not one of this method; None: it is."""
        return None if values["kind"] == type(self).__name__ else \
            f"another training method ({values['kind']}, not {type(self).__name__})"

    def restore(self, state: MethodState) -> None:  # noqa: B027 (nothing to remember is the usual case)
        """Go on from what `state` gave."""
