"""Where a run stands. A checkpoint holds all of it, so that a run which was killed goes on from there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class TrainState:
    """One of these is changed from step to step."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # spent on steps, for tokens a second
    elapsed: float = 0.0  # with validation and saving, for budgets in minutes
    lasted: float = 0.0  # the same when the last step ended: what comes after that one is no training any more
    used: float = 0.0  # share of the budget, when the last step began
    means: dict[str, list[float]] = field(default_factory=dict)  # running mean of the loss, by the tasks that make it
    #                                                              up, and how many steps it is the mean of
    loss: float | None = None
    losses: dict[str, float] | None = None
    measures: dict[str, float] | None = None  # what the network tells of itself: mean steps taken
    phase: int = 0  # which run of the schedule it is, and how many steps came before it
    before: int = 0
    warmup: int | None = None  # steps of it, once the time was found to be too short for the recipe's
    warmed: float = 0.0  # share of the phase that was over when its warm-up ended
    positions: dict[str, list[int]] | None = None
    best: dict[str, Any] | None = None  # the best look at held-out data, where one is chosen (`selection.Best`)
    log: dict[str, Any] | None = None  # how much of log.jsonl is known, and its checksum
    ended: bool = False  # by a callback, before the budget was used up
    threads: int | None = None  # sums are split over them: with another number the last bits differ

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)
