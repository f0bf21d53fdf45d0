"""A training method: how a network learns from batches. Gradient descent is one; counting and closed forms are others.

The trainer calls it for one step at a time and does everything else: budget, validation, log, checkpoints, resume. All
learned values are parameters or buffers of the network, which checkpoints and `model/` store. Further state (optimizer
moments) is returned by `state`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from stemma.network.network import Network
from stemma.schema.recipe import RecipeSettings
from stemma.training.budget import Budget
from stemma.training.forward_backward import ForwardBackward
from stemma.training.loader import BatchLoader, PreparedBatch
from stemma.training.train_state import TrainState


class StepFailed(Exception):  # noqa: N818  (the trainer saves the state, then raises `TrainingDivergedError`)
    """A step whose update must not be applied: the problem with the loss, and advice."""

    def __init__(self, problem: str, advice: str):
        super().__init__(problem)
        self.problem, self.advice = problem, advice


@dataclass(frozen=True)
class MethodSetup:
    """Arguments of a training method."""

    network: Network
    settings: RecipeSettings
    forward_backward: ForwardBackward  # on the device and in the precision of the run
    budget: Budget
    loader: BatchLoader | None = None
    run: Path | None = None  # its folder


class StepMetrics(NamedTuple):
    """Result of one step."""

    losses: dict[str, float]  # by objective
    metrics: dict[str, float]  # metrics of the network
    details: dict[str, Any]  # for the log: learning rate, gradient norm, ...


class MethodState(NamedTuple):
    """State of a method in a checkpoint, besides the network."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]  # JSON, with the `kind` of the method or of its optimizer


class Method(ABC):
    def __init__(self, setup: MethodSetup):
        self.setup, self.network, self.forward_backward = setup, setup.network, setup.forward_backward

    def next_batch(self, loader: BatchLoader, state: TrainState, length: int, progress: float) -> PreparedBatch:
        """The batch of the next step. A method that does not sample rows reads the corpus in its own way."""
        return loader.get_batch(state.step, length, progress)

    def completed_fraction(self, state: TrainState) -> float:
        """How much of its work a method has done that ends by itself; training ends at 1 or with the budget."""
        return 0.0

    def finish_network(self, state: TrainState) -> None:  # noqa: B027 (most methods change the network in every step)
        """Put everything learned so far into the network; called before validation."""

    def remove_files(self) -> None:  # noqa: B027 (most methods have none)
        """Remove the files of a finished run that only its training needed."""

    @abstractmethod
    def train_step(self, prepared: PreparedBatch, state: TrainState, progress: float) -> StepMetrics:
        """Train on one batch; `progress` is the used fraction of the budget. torch is seeded by the step, so that a
        resumed run has the same random numbers."""

    def set_train_mode(self) -> None:
        """Put the network into training mode."""
        self.network.train()

    def evaluated_weights(self) -> AbstractContextManager[None]:
        """A context in which the network has the weights that are validated and saved in `model/`."""
        return nullcontext()

    def live_weights(self) -> AbstractContextManager[None]:
        """A context in which the network has the weights that training continues from, also within
        `evaluated_weights`."""
        return nullcontext()

    def after_validation(self, loss: float) -> None:  # noqa: B027 (most methods do not depend on it)
        """Called with the loss of each validation at a multiple of `validate_every`."""

    def finish(self) -> None:  # noqa: B027 (most methods have nothing to do)
        """Give the network its final weights, after the last step."""

    def warning(self) -> str | None:
        """A warning to show before the first step, or None."""
        return None

    def state(self) -> MethodState:
        return MethodState({}, {"kind": type(self).__name__})

    def incompatibility(self, values: dict[str, object]) -> str | None:
        """Why a checkpoint with these values cannot be restored by this method; None if it can."""
        return None if values["kind"] == type(self).__name__ else \
            f"another training method ({values['kind']}, not {type(self).__name__})"

    def restore(self, state: MethodState) -> None:  # noqa: B027 (most methods have no state)
        """Restore what `state` returned."""
