"""Training throughput of this machine, and how long the quickstart trains because of it.

The first seconds of the run itself are timed. If the default minutes give too few tokens to beat the n-gram baselines,
the quickstart trains longer, up to MAX_EXTENSION times the default. With `--minutes` it trains exactly that long and
says what to expect.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stemma.errors import pluralize
from stemma.training.budget import Budget
from stemma.training.pretrain import open_run
from stemma.training.run_folder import read_run

MINUTES = 4.0  # of pre-training, by default
# After this many tokens the model beat the n-gram baselines: 25.7% against 24.3%, 4.35 nats against 4.51.
ENOUGH_TOKENS = 2_000_000
MAX_EXTENSION = 2.0  # a slow machine trains for at most MAX_EXTENSION * MINUTES
WARMUP_SECONDS, TIMED_SECONDS = 2.0, 6.0  # the first steps are slower and are not timed


@dataclass(frozen=True)
class Speed:
    """The measured throughput and the resulting training time."""

    tokens_per_second: float
    minutes: float  # of training
    said: str  # a sentence about both

    @classmethod
    def from_rate(cls, tokens_per_second: float, requested_minutes: float | None) -> Speed:
        minutes = MINUTES if requested_minutes is None else requested_minutes
        needed = ENOUGH_TOKENS / tokens_per_second / 60
        throughput = f"this machine trains on about {tokens_per_second:,.0f} tokens per second"
        expected = f"{throughput}: {_millions(tokens_per_second * 60 * minutes)} in {pluralize(minutes, 'minute')}"
        if needed <= minutes:
            return cls(tokens_per_second, minutes, expected)
        short = (f"{expected}, fewer than the {ENOUGH_TOKENS / 1e6:g} million that it takes to beat the n-gram "
                 "baselines")
        rounded = math.ceil(needed * 4) / 4
        if requested_minutes is not None:
            return cls(tokens_per_second, minutes, f"{short}; --minutes {rounded:g} would be enough")
        longer = min(rounded, MAX_EXTENSION * MINUTES)
        if longer == rounded:
            return cls(tokens_per_second, longer, f"{short}; so it trains for {pluralize(longer, 'minute')} instead")
        return cls(tokens_per_second, longer,
                   f"{short}; it trains for {pluralize(longer, 'minute')} instead, still only "
                   f"{_millions(tokens_per_second * 60 * longer)}: expect the model to be worse than the baselines "
                   f"(--minutes {rounded:g} would be enough)")


def train_and_time(run: Path, show: bool, requested_minutes: float | None,
                   record: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Train the run. After the first seconds, record the throughput and extend the budget if necessary."""
    training = open_run(run, show)
    loop = training.trainer
    with loop:
        loop.show_progress = False  # the progress bar starts when the budget is final
        loop.run_for(WARMUP_SECONDS)
        before = loop.state.tokens, loop.state.seconds
        if loop.run_for(TIMED_SECONDS):
            before = 0, 0.0  # training is finished already
        speed = Speed.from_rate(tokens_per_second(loop.state.tokens - before[0], loop.state.seconds - before[1]),
                                requested_minutes)
        loop.budget = Budget("minutes", speed.minutes)
        replace(read_run(run)[1], budget=loop.budget).write(run)
        record(asdict(speed))
        loop.show_progress = show
        loop.run_for()
        summary = loop.summarize()
    return training.finish(summary)


def tokens_per_second(tokens: int, seconds: float) -> float:
    return tokens / max(seconds, 1e-9)


def _millions(tokens: float) -> str:
    return f"{tokens / 1e6:.1f} million tokens" if tokens >= 1e5 else f"{tokens:,.0f} tokens"
