"""How far long work is: a bar on a terminal, and elsewhere (nohup, Slurm, CI) a plain line now and then, on stderr.

    with stage("tokenising", total=size, unit="bytes") as work:
        for block in blocks:
            work.done(block.end)          # or work.advance(1)

    progress: tokenising · 43% · 12.3 of 28.4 MB · 1:30 · 2:00 left

Whoever does the work says so, and need not know who is watching: nobody, until the command line calls `watched()`.
Stages may be nested; one of them has the bar, and a line names all of them. Lines come from a thread of their own,
so that a call which takes minutes does not silence them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, TextIO

FIRST_LINE_SECONDS, SECOND_LINE_SECONDS = 30.0, 60.0  # seconds to the first line, and from there to the second
INTERVAL_GROWTH, MAX_INTERVAL_SECONDS = 1.25, 600.0  # each further line comes so much later, up to ten minutes
BarStyle = Literal["ours", "own", "none"]
POLL_SECONDS = 1.0  # seconds between looks at the clock


class ProgressStage:
    """Work under way: what it is, how much of it is done, and of how much."""

    def __init__(self, label: str, total: float | None = None, unit: str = "", start_time: float = 0.0):
        self.label, self.total, self.unit, self.start_time = label, total, unit, start_time
        self.count = 0.0
        self.text = ""  # in place of the count, where there is more to say
        self._draw: Callable[[ProgressStage], None] = lambda stage: None

    def set_count(self, count: float) -> None:
        """So much is done in all."""
        self.count = count
        self._draw(self)

    def advance(self, count: float = 1) -> None:
        self.set_count(self.count + count)

    def set_fraction(self, fraction: float, text: str) -> None:
        """The share that is done, and what to say of it."""
        self.total, self.text = 1.0, text
        self.set_count(fraction)

    def describe(self, now: float) -> str:
        """The share, the count, how long it has taken and how long it will: what is known of them."""
        share = self.count / self.total if self.total else None
        parts = [] if share is None else [f"{min(share, 1.0):.0%}"]
        spent = max(0.0, now - self.start_time)
        if self.text:
            return " · ".join([*parts, self.text])
        if self.count:
            parts.append(_format_count(self.count, self.total, self.unit))
        parts.append(format_duration(spent))
        if share and share < 1:
            parts.append(f"{format_duration(spent * (1 - share) / share)} left")
        return " · ".join(parts)


class ProgressLines:
    """Plain lines about the stages that are under way; the first after half a minute, the others ever more rarely."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic):
        self.stream, self.now = stream, now
        self.stages: list[ProgressStage] = []
        self._due, self._gap = now() + FIRST_LINE_SECONDS, SECOND_LINE_SECONDS

    def print_if_due(self) -> None:
        """Print a line if one is due."""
        stages, moment = list(self.stages), self.now()
        if not stages or moment < self._due:
            return
        self._due, self._gap = moment + self._gap, min(self._gap * INTERVAL_GROWTH, MAX_INTERVAL_SECONDS)
        told = [part for one in stages
                for part in (one.label, one.describe(moment) if one.count or one is stages[-1] else "")]
        print("progress: " + " · ".join(filter(None, told)), file=self.stream, flush=True)


class _ProgressState:
    """What the stages of this process report to."""

    lines: ProgressLines | None = None
    terminal: Any = None  # a rich console
    drawn = False  # somebody has the terminal's last line


_state = _ProgressState()


@contextmanager
def show_progress() -> Iterator[None]:
    """Show the progress of whatever runs inside, on stderr."""
    if _state.lines is not None or _state.terminal is not None:
        yield
        return
    ended = threading.Event()
    if sys.stderr.isatty():
        _state.terminal = _console()
    else:
        _state.lines = lines = ProgressLines(sys.stderr)

        def look() -> None:
            while not ended.wait(POLL_SECONDS):
                lines.print_if_due()

        threading.Thread(target=look, name="progress", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        _state.lines = _state.terminal = None


@contextmanager
def report_to(lines: ProgressLines) -> Iterator[ProgressLines]:
    """Lines of one's own instead, with another stream and clock."""
    before = _state.lines, _state.terminal
    _state.lines, _state.terminal = lines, None
    try:
        yield lines
    finally:
        _state.lines, _state.terminal = before


@contextmanager
def progress_stage(label: str, total: float | None = None, unit: str = "",
          bar: BarStyle = "ours") -> Iterator[ProgressStage]:
    """Say that this work is under way. On a terminal it has a bar of ours if no other stage has one; or it draws its
    `own`, so that what it holds gets none; or it is too general for one."""
    lines = _state.lines
    made = ProgressStage(label, total, unit, lines.now() if lines is not None else time.monotonic())
    if lines is not None:
        lines.stages.append(made)
        try:
            yield made
        finally:
            lines.stages.remove(made)
        return
    if _state.terminal is None or _state.drawn or bar == "none":
        yield made
        return
    _state.drawn = True
    try:
        with _bar(made) if bar == "ours" else nullcontext():
            yield made
    finally:
        _state.drawn = False


@contextmanager
def _bar(stage: ProgressStage) -> Iterator[None]:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    first = BarColumn(bar_width=26) if stage.total else SpinnerColumn()
    parts = (TextColumn("{task.fields[label]}", markup=False), first, TextColumn("{task.description}", markup=False))
    with Progress(*parts, console=_state.terminal, transient=True) as bar:
        task = bar.add_task("", total=stage.total, label=stage.label)
        stage._draw = lambda told: bar.update(task, completed=told.count, description=told.describe(time.monotonic()))
        yield


def _console() -> Any:
    from rich.console import Console

    # what draws a bar writes to the terminal itself, past the command line's filter of control characters
    return Console(file=getattr(sys.stderr, "unescaped", sys.stderr), highlight=False)


def _format_count(count: float, total: float | None, unit: str) -> str:
    """12.3 of 28.4 MB; 1,200 of 5,000 rows; 1,200 rows."""
    if unit == "bytes":
        return f"{count / 1e6:,.1f} MB" if total is None else f"{count / 1e6:,.1f} of {total / 1e6:,.1f} MB"
    return f"{count:,.0f} {unit}" if total is None else f"{count:,.0f} of {total:,.0f} {unit}"


def format_duration(seconds: float) -> str:
    """6:10, or 1:06:10 from an hour on."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
