"""Progress of long work on stderr: a bar on a terminal, otherwise (nohup, Slurm, CI) a plain line from time to time.

    with progress_stage("tokenising", total=size, unit="bytes") as stage:
        for block in blocks:
            stage.set_count(block.end)    # or stage.advance(1)

    progress: tokenising · 43% · 12.3 of 28.4 MB · 1:30 · 2:00 left

The code that does the work declares its stages. Nothing is shown until the command line calls `show_progress()`.
Stages may be nested; one of them has the bar, and a line names all of them. A separate thread prints the lines, so that
they also appear during a long call.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, TextIO

FIRST_LINE_SECONDS, SECOND_LINE_SECONDS = 30.0, 60.0  # seconds to the first line, and from there to the second
INTERVAL_GROWTH, MAX_INTERVAL_SECONDS = 1.25, 600.0  # growth of the interval between further lines, and its maximum
BarStyle = Literal["ours", "own", "none"]
POLL_SECONDS = 1.0  # interval of checking the clock


class ProgressStage:
    """A stage of work: its label, count and total."""

    def __init__(self, label: str, total: float | None = None, unit: str = "", start_time: float = 0.0):
        self.label, self.total, self.unit, self.start_time = label, total, unit, start_time
        self.count = 0.0
        self.text = ""  # shown instead of the count
        self._draw: Callable[[ProgressStage], None] = lambda stage: None

    def set_count(self, count: float) -> None:
        """Set the total amount done."""
        self.count = count
        self._draw(self)

    def advance(self, count: float = 1) -> None:
        self.set_count(self.count + count)

    def set_fraction(self, fraction: float, text: str) -> None:
        """Set the fraction done, and the text to show."""
        self.total, self.text = 1.0, text
        self.set_count(fraction)

    def describe(self, now: float) -> str:
        """Fraction, count, elapsed time and estimated remaining time, as far as they are known."""
        fraction = self.count / self.total if self.total else None
        parts = [] if fraction is None else [f"{min(fraction, 1.0):.0%}"]
        spent = max(0.0, now - self.start_time)
        if self.text:
            return " · ".join([*parts, self.text])
        if self.count:
            parts.append(_format_count(self.count, self.total, self.unit))
        parts.append(format_duration(spent))
        if fraction and fraction < 1:
            parts.append(f"{format_duration(spent * (1 - fraction) / fraction)} left")
        return " · ".join(parts)


class ProgressLines:
    """Plain lines about the current stages; the first after half a minute, then at growing intervals."""

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
        parts = [part for stage in stages
                 for part in (stage.label, stage.describe(moment) if stage.count or stage is stages[-1] else "")]
        print("progress: " + " · ".join(filter(None, parts)), file=self.stream, flush=True)


class _ProgressState:
    """Where the stages of this process report to."""

    lines: ProgressLines | None = None
    terminal: Any = None  # a rich console
    drawn = False  # a stage is using the terminal's last line


_state = _ProgressState()


@contextmanager
def show_progress() -> Iterator[None]:
    """Show the progress of stages inside the block on stderr."""
    if _state.lines is not None or _state.terminal is not None:
        yield
        return
    ended = threading.Event()
    if sys.stderr.isatty():
        _state.terminal = _console()
    else:
        _state.lines = lines = ProgressLines(sys.stderr)

        def poll() -> None:
            while not ended.wait(POLL_SECONDS):
                lines.print_if_due()

        threading.Thread(target=poll, name="progress", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        _state.lines = _state.terminal = None


@contextmanager
def report_to(lines: ProgressLines) -> Iterator[ProgressLines]:
    """Report to these lines instead, with their own stream and clock."""
    previous = _state.lines, _state.terminal
    _state.lines, _state.terminal = lines, None
    try:
        yield lines
    finally:
        _state.lines, _state.terminal = previous


@contextmanager
def progress_stage(label: str, total: float | None = None, unit: str = "",
                   bar: BarStyle = "ours") -> Iterator[ProgressStage]:
    """Declare a stage of work. On a terminal it has a bar if no outer stage has one. `bar`: ours; own (the code draws
    its own bar, and inner stages have none); or none."""
    lines = _state.lines
    stage = ProgressStage(label, total, unit, lines.now() if lines is not None else time.monotonic())
    if lines is not None:
        lines.stages.append(stage)
        try:
            yield stage
        finally:
            lines.stages.remove(stage)
        return
    if _state.terminal is None or _state.drawn or bar == "none":
        yield stage
        return
    _state.drawn = True
    try:
        with _bar(stage) if bar == "ours" else nullcontext():
            yield stage
    finally:
        _state.drawn = False


@contextmanager
def _bar(stage: ProgressStage) -> Iterator[None]:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    first = BarColumn(bar_width=26) if stage.total else SpinnerColumn()
    parts = (TextColumn("{task.fields[label]}", markup=False), first, TextColumn("{task.description}", markup=False))
    with Progress(*parts, console=_state.terminal, transient=True) as bar:
        task = bar.add_task("", total=stage.total, label=stage.label)
        stage._draw = lambda current: bar.update(task, completed=current.count,
                                                 description=current.describe(time.monotonic()))
        yield


def _console() -> Any:
    from rich.console import Console

    # A bar bypasses the command line's filter of control characters.
    return Console(file=getattr(sys.stderr, "unescaped", sys.stderr), highlight=False)


def _format_count(count: float, total: float | None, unit: str) -> str:
    """12.3 of 28.4 MB; 1,200 of 5,000 rows; 1,200 rows."""
    if unit == "bytes":
        return f"{count / 1e6:,.1f} MB" if total is None else f"{count / 1e6:,.1f} of {total / 1e6:,.1f} MB"
    return f"{count:,.0f} {unit}" if total is None else f"{count:,.0f} of {total:,.0f} {unit}"


def format_duration(seconds: float) -> str:
    """Minutes and seconds as 6:10, or with hours as 1:06:10."""
    total_minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(total_minutes, 60)
    return f"{hours}:{minutes:02}:{second:02}" if hours else f"{minutes}:{second:02}"
