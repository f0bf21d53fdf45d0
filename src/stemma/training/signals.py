"""SIGINT, SIGTERM and SIGHUP stop training after the current step, which is then saved."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

# Ctrl-C, a request to terminate, and a closed terminal (not all of them exist on Windows).
STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def deferred_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP in the yielded list; a second signal acts as usual."""
    received: list[int] = []
    installed: dict[signal.Signals, Any] = {}  # previous handlers; a signal may come before all are installed

    def record(signal_number: int, frame: object) -> None:
        leave_terminal()
        received.append(signal_number)
        for previous_number, handler in installed.items():
            signal.signal(previous_number, handler)

    with signal_handlers(STOP_SIGNALS, record) as previous:
        installed.update(previous)
        yield received


@contextmanager
def signal_handlers(signals: Sequence[signal.Signals],
                    handler: Callable[[int, Any], Any]) -> Iterator[dict[signal.Signals, Any]]:
    """Install `handler` for these signals; yields the previous handlers. Under nohup, SIGHUP stays ignored."""
    previous: dict[signal.Signals, Any] = {}
    try:
        for signal_number in signals:
            if signal_number == signal.SIGINT or signal.getsignal(signal_number) is not signal.SIG_IGN:
                previous[signal_number] = signal.signal(signal_number, handler)
    except ValueError:  # not the main thread: the caller handles signals
        pass
    try:
        yield previous
    finally:
        for signal_number, previous_handler in previous.items():
            signal.signal(signal_number, previous_handler)


def leave_terminal() -> None:
    """Redirect output to the null device if the terminal is closed: a write error would lose the checkpoint."""
    for descriptor in (1, 2):  # stdout and stderr
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, descriptor)
                os.close(null)
