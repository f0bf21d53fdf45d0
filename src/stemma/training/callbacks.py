"""Callbacks: objects that a run calls after a step, after a look at held-out data, and after a checkpoint.

    class Watch(stemma.Callback):
        def on_validation(self, loop, found):
            print(loop.course.step, found["validation_loss"])

    stemma.pretrain("bert@tiny", corpus="notes.txt", out="run", steps=1000, callbacks=[Watch()])

The parts of the loop itself that only follow what happens (selection, logging) are callbacks, too. What is given to a
call holds for every run inside it (the stages of a pipeline), so it travels beside the arguments, as the device does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemma import registry
from stemma.device import takes
from stemma.errors import UserError
from stemma.schema.training import TrainingSettings

if TYPE_CHECKING:
    from stemma.training.trainer import Trainer

EVENTS = ("on_step", "on_validation", "on_checkpoint")
_active: ContextVar[tuple[Any, ...]] = ContextVar("callbacks", default=())


@dataclass(frozen=True)
class StepReport:
    """What a step did; `loop.course` has the counters after it."""

    loss: float | None  # the number people compare; None where this batch does not tell it
    losses: dict[str, float]  # by objective
    details: dict[str, Any]  # what the training method tells besides: learning rate, gradient norm


class Callback:
    """Derive from it and define what is needed. A method that returns True ends the training after this step, as if
    the budget were used up: with a look at held-out data and a checkpoint.

    `loop` gives `run` (the folder), `recipe`, `network`, `course` (step, tokens, loss, ...) and `log`. After a kill,
    `resume` takes the steps since the last checkpoint again, and calls for them again.
    """

    def on_step(self, trainer: Trainer, report: StepReport) -> bool | None:
        """After each step."""
        return None

    def on_validation(self, trainer: Trainer, metrics: dict[str, Any]) -> bool | None:
        """After each look at held-out data. What is added to `found` goes into the log."""
        return None

    def on_checkpoint(self, trainer: Trainer, folder: Path) -> bool | None:
        """After each checkpoint, which lies complete in this folder. Nothing is left to be ended by then."""
        return None


@contextmanager
def with_callbacks(callbacks: Sequence[object] | None) -> Iterator[None]:
    """While this lasts, every run calls these, and those given before."""
    for callback in callbacks or ():
        if isinstance(callback, type) or not any(callable(getattr(callback, event, None)) for event in EVENTS):
            raise UserError(f"{callback!r} is no callback: it has none of {', '.join(EVENTS)}; give an object of a "
                            "class that derives from stemma.Callback.")
    token = _active.set((*_active.get(), *(callbacks or ())))
    try:
        yield
    finally:
        _active.reset(token)


accepts_callbacks = takes("callbacks", with_callbacks)


def build_callbacks(settings: TrainingSettings) -> list[Any]:
    """Those that the recipe names, in its order, and then those that were given."""
    named = [registry.get("callback", one.kind).build(one) for one in (settings.callbacks or {}).values()]
    return [*named, *_active.get()]


class CallbackList:
    """Several, called in order."""

    def __init__(self, callbacks: Sequence[object]):
        self.callbacks = {event: [getattr(one, event) for one in callbacks if hasattr(one, event)] for event in EVENTS}

    def notify(self, event: str, trainer: Trainer, payload: object) -> bool:
        """Whether one of them ends the training; all of them are called."""
        ends = [call(trainer, payload) is True for call in self.callbacks[event]]
        return any(ends)
