"""How fast this machine reads, and for how long the quickstart trains because of it.

The first seconds of the run itself are the measurement, so nothing is spent on it. A machine on which the usual
minutes are too few tokens to get past counting neighbours trains for longer, up to MOST times the usual; whoever asks
for a number of minutes gets that number, and is told what to expect of it.
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

MINUTES = 4.0         # of pre-training, unless asked for
ENOUGH_TOKENS = 2_000_000  # tokens: after so many it was better than counting (25.7% against 24.3%, 4.35 nats against
#                            4.51)
MAX_EXTENSION = 2.0            # times MINUTES is the longest that a slow machine is given
WARMUP_SECONDS, TIMED_SECONDS = 2.0, 6.0  # seconds: steps that are slow because they are the first ones, and those
#                                           that are measured


@dataclass(frozen=True)
class Speed:
    """What was measured and what follows from it."""

    tokens_per_second: float
    minutes: float        # for which is trained
    said: str

    @classmethod
    def from_rate(cls, tokens_per_second: float, requested_minutes: float | None) -> Speed:
        minutes = MINUTES if requested_minutes is None else requested_minutes
        needed = ENOUGH_TOKENS / tokens_per_second / 60
        rate = f"this machine reads about {tokens_per_second:,.0f} tokens a second"
        within = f"{rate}: {_millions(tokens_per_second * 60 * minutes)} in {pluralize(minutes, 'minute')}"
        if needed <= minutes:
            return cls(tokens_per_second, minutes, within)
        short = f"{within}, fewer than the {ENOUGH_TOKENS / 1e6:g} million that it takes to be better than counting neighbours"
        rounded = math.ceil(needed * 4) / 4
        if requested_minutes is not None:
            return cls(tokens_per_second, minutes, f"{short}; --minutes {rounded:g} would be enough")
        longer = min(rounded, MAX_EXTENSION * MINUTES)
        if longer == rounded:
            return cls(tokens_per_second, longer, f"{short}; so it trains for {pluralize(longer, 'minute')} instead")
        return cls(tokens_per_second, longer,
                   f"{short}; it trains for {pluralize(longer, 'minute')} instead, still only "
                   f"{_millions(tokens_per_second * 60 * longer)}: expect the model to be worse than counting "
                   f"(--minutes {rounded:g} would be enough)")


def train_and_time(run: Path, show: bool, requested_minutes: float | None,
                   record: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The run's training; after its first seconds the speed is noted and, if need be, the budget made longer."""
    training = open_run(run, show)
    loop = training.trainer
    with loop:
        loop.show_progress = False  # one bar is enough
        loop.run_for(WARMUP_SECONDS)
        before = loop.state.tokens, loop.state.seconds
        if loop.run_for(TIMED_SECONDS):
            before = 0, 0.0  # it is over already
        speed = Speed.from_rate(tokens_per_second(loop.state.tokens - before[0], loop.state.seconds - before[1]),
                                requested_minutes)
        loop.budget = Budget("minutes", speed.minutes)
        replace(read_run(run)[1], budget=loop.budget).write(run)
        record(asdict(speed))
        loop.show_progress = show
        loop.run_for()
        told = loop.summarize()
    return training.finish(told)


def tokens_per_second(tokens: int, seconds: float) -> float:
    """Tokens a second."""
    return tokens / max(seconds, 1e-9)


def _millions(tokens: float) -> str:
    return f"{tokens / 1e6:.1f} million tokens" if tokens >= 1e5 else f"{tokens:,.0f} tokens"
