"""Whoever asks a run to stop is heard, and obeyed when the step is done: then everything is saved."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM are noted, and obeyed after the step; a second one ends the process as usual."""
    received: list[int] = []
    previous: dict[signal.Signals, Any] = {}

    def note(number: int, frame: object) -> None:
        received.append(number)
        for each, handler in previous.items():
            signal.signal(each, handler)

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, note)
    except ValueError:  # not the main thread: whoever runs us there handles signals
        pass
    try:
        yield received
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)
