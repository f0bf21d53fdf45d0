"""Callbacks: objects called after each step, after each validation and after each checkpoint.

    class Watch(stemma.Callback):
        def on_validation(self, trainer, metrics):
            print(trainer.state.step, metrics["validation_loss"])

    stemma.pretrain("bert@tiny", corpus="notes.txt", out="run", steps=1000, callbacks=[Watch()])

Early stopping and logging are callbacks, too. Callbacks given to a call apply to every run inside it (the stages of a
pipeline), so a context variable passes them on, as it does for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemma import registry
from stemma.device import runs_within
from stemma.errors import UserError
from stemma.schema.training import TrainingSettings

if TYPE_CHECKING:
    from stemma.training.trainer import Trainer

EVENTS = ("on_step", "on_validation", "on_checkpoint")
_active: ContextVar[tuple[Any, ...]] = ContextVar("callbacks", default=())


@dataclass(frozen=True)
class StepReport:
    """Result of one step; `trainer.state` has the counters after it."""

    loss: float | None  # headline loss; None if this batch has no token-prediction objective
    losses: dict[str, float]  # by objective
    details: dict[str, Any]  # further values of the training method: learning rate, gradient norm
    words: int = 0  # words of its rows, if the run counts words


class Callback:
    """Base class: override the methods you need. A method that returns True ends the training after this step, with a
    validation and a checkpoint, as at the end of the budget.

    `trainer` has `run` (the folder), `recipe`, `network`, `state` (step, tokens, loss, ...) and `log`. After a kill,
    `resume` repeats the steps since the last checkpoint, and their callbacks.
    """

    def on_step(self, trainer: Trainer, report: StepReport) -> bool | None:
        """After each step."""
        return None

    def on_validation(self, trainer: Trainer, metrics: dict[str, Any]) -> bool | None:
        """After each validation. Entries added to `metrics` are logged."""
        return None

    def on_checkpoint(self, trainer: Trainer, folder: Path) -> bool | None:
        """After each checkpoint; `folder` is complete. The return value has no effect."""
        return None


@contextmanager
def with_callbacks(callbacks: Sequence[object] | None) -> Iterator[None]:
    """Add callbacks to every run inside this context."""
    for callback in callbacks or ():
        if isinstance(callback, type) or not any(callable(getattr(callback, event, None)) for event in EVENTS):
            raise UserError(f"{callback!r} is no callback: it has none of {', '.join(EVENTS)}; give an object of a "
                            "class that derives from stemma.Callback.")
    token = _active.set((*_active.get(), *(callbacks or ())))
    try:
        yield
    finally:
        _active.reset(token)


accepts_callbacks = runs_within("callbacks", with_callbacks)


def build_callbacks(settings: TrainingSettings) -> list[Any]:
    """The callbacks of the recipe, in its order, then those given to the call."""
    named = [registry.get("callback", callback.kind).build(callback)
             for callback in (settings.callbacks or {}).values()]
    return [*named, *_active.get()]


class CallbackList:
    """Several callbacks, called in order."""

    def __init__(self, callbacks: Sequence[object]):
        self.callbacks = {event: [getattr(callback, event) for callback in callbacks if hasattr(callback, event)]
                          for event in EVENTS}

    def add(self, callback: object) -> None:
        """Call this one, too, after the others."""
        for event, calls in self.callbacks.items():
            if hasattr(callback, event):
                calls.append(getattr(callback, event))

    def notify(self, event: str, trainer: Trainer, payload: object) -> bool:
        """Call all of them; True if one ends the training."""
        ends = [call(trainer, payload) is True for call in self.callbacks[event]]
        return any(ends)
