"""The progress line of training: fraction done, loss and unigram baseline, tokens per second, time left.

    38% ━━━━━━━━━━╸               step 2,310 · loss 4.81 (unigram 6.02) · 6,900 tokens/s · 6:10 left

It goes to stderr: a bar on a terminal, otherwise plain lines from time to time.
"""

from __future__ import annotations

import math
import sys
from contextlib import ExitStack
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from stemma.progress import BarStyle, format_duration, progress_stage


class ProgressBar:
    """`with ProgressBar("bert@mini · 11.2 M parameters", "10 minutes") as progress: progress.update(...)`"""

    def __init__(self, label: str, budget: str, enabled: bool = True, console: Console | None = None):
        # the bar needs control characters, which the command line filters from other output
        self._console = console or Console(file=getattr(sys.stderr, "unescaped", sys.stderr))
        self._title = " · ".join(part for part in (label, budget) if part)
        self._bar: Bar | None = None
        self._label, self._exit_stack = label, ExitStack()
        if enabled and self._console.is_terminal:
            self._bar = Bar(TextColumn("{task.percentage:>3.0f}%"), BarColumn(bar_width=26),
                            TextColumn("{task.description}"), console=self._console, refresh_per_second=4)
            self._task = self._bar.add_task("", total=1.0)

    def update(self, step: int, progress: float, loss: float, unigram: float | None = None,
               tokens_per_second: float | None = None, seconds_left: float | None = None) -> None:
        """Update the line; `progress` is the used fraction of the budget."""
        text = format_progress(step, loss, unigram, tokens_per_second, seconds_left)
        self._stage.set_fraction(progress, text)
        if self._bar is not None:
            self._bar.update(self._task, completed=min(progress, 1.0), description=text)

    def __enter__(self) -> ProgressBar:
        style: BarStyle = "none" if self._bar is None else "own"
        self._stage = self._exit_stack.enter_context(progress_stage(f"training {self._label}", bar=style))
        if self._bar is not None:
            self._console.print(self._title, highlight=False, markup=False)
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._exit_stack.close()
        if self._bar is not None:
            self._bar.stop()


def format_progress(step: int, loss: float, unigram: float | None = None, tokens_per_second: float | None = None,
                    seconds_left: float | None = None) -> str:
    """The text of the progress line; unknown values are left out."""
    parts = [f"step {step:,}"]
    if not math.isnan(loss):  # word vectors have a loss after a validation only
        parts.append(f"loss {loss:.2f}" + (f" (unigram {unigram:.2f})" if unigram is not None else ""))
    if tokens_per_second is not None:
        digits = -2 if tokens_per_second >= 1000 else 0  # rounded: the value fluctuates
        parts.append(f"{round(tokens_per_second, digits):,.0f} tokens/s")
    if seconds_left is not None:
        parts.append(f"{format_duration(seconds_left)} left")
    return " · ".join(parts)
