"""Whoever asks a run to stop is heard, and obeyed when the step is done: then everything is saved."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

# Ctrl-C, a request to end, and a terminal that was closed (there is none of these on Windows).
STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def deferred_signals() -> Iterator[list[int]]:
    """SIGINT, SIGTERM and SIGHUP are noted, and obeyed after the step; a second one ends the process as usual."""
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        leave_terminal()
        received.append(number)
        for each, handler in previous.items():
            signal.signal(each, handler)

    with signal_handlers(STOP_SIGNALS, note) as previous:
        yield received


@contextmanager
def signal_handlers(signals: Sequence[signal.Signals],
            handler: Callable[[int, Any], Any]) -> Iterator[dict[signal.Signals, Any]]:
    """These signals go to `handler`; gives back who had them before. Under nohup, SIGHUP stays without effect."""
    previous: dict[signal.Signals, Any] = {}
    try:
        for number in signals:
            if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, handler)
    except ValueError:  # not the main thread: whoever runs us there handles signals
        pass
    try:
        yield previous
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def leave_terminal() -> None:
    """Writing to a terminal that was closed is an error, and a checkpoint would be lost by it: it goes nowhere."""
    for number in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
                silent = os.open(os.devnull, os.O_WRONLY)
                os.dup2(silent, number)
                os.close(silent)
