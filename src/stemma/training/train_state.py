"""The training state of a run: counters that every checkpoint stores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class TrainState:
    """Mutable state of a run, updated after each step and stored in every checkpoint."""

    step: int = 0
    tokens: int = 0
    words: int = 0  # words read, if the run counts words (`revisions.py`)
    seconds: float = 0.0  # time of steps, for tokens per second
    elapsed: float = 0.0  # including validation and saving, for budgets in minutes
    lasted: float = 0.0  # `elapsed` at the end of the last step: training time without what follows it
    used: float = 0.0  # fraction of the budget used at the start of the last step
    means: dict[str, list[float]] = field(default_factory=dict)  # by objectives: running mean of the loss, step count
    loss: float | None = None
    losses: dict[str, float] | None = None
    measures: dict[str, float] | None = None  # metrics of the network, e.g. mean number of recurrent steps
    phase: int = 0  # index of the phase of the schedule
    before: int = 0  # steps before this phase
    warmup: int | None = None  # warm-up steps, if a time budget shortened the warm-up of the recipe
    warmed: float = 0.0  # progress of the phase at the end of its warm-up
    positions: dict[str, list[int]] | None = None  # cursors of the samplers
    best: dict[str, Any] | None = None  # best validation so far (`early_stopping.BestValidation`)
    log: dict[str, Any] | None = None  # size and checksum of log.jsonl
    ended: bool = False  # ended by a callback before the budget was used up
    threads: int | None = None  # a bit-exact resume needs the same number

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)
