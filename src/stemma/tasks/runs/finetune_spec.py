"""What `run.json` says of a fine-tune (`RunConfig.task`): which task it is, and what training and scoring must know.

On disk it is plain JSON, in which only what is stated occurs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from stemma.task_config import TaskConfig
from stemma.training.run_folder import RunConfig

MULTITASK = "multitask"  # the kind of a run that has more than one task, or could have


@dataclass(frozen=True)
class FinetuneSpec:
    """What every fine-tune states."""

    kind: str  # a kind of task, or SEVERAL
    options: Mapping[str, Any]  # what was typed, to be typed again
    changes: list[str]  # KEY=VALUE, as typed

    @classmethod
    def from_run_config(cls, plan: RunConfig) -> Self:
        assert plan.task is not None
        known = {one.name for one in fields(cls)}
        return cls(**{key: value for key, value in plan.task.items() if key in known})

    def to_json(self) -> dict[str, Any]:
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) is not None}


@dataclass(frozen=True)
class HeadFinetuneSpec(FinetuneSpec):
    """Of tasks that are answered by heads."""

    cards: Mapping[str, Any]  # by name, as they are stored
    vocabulary: int  # tokens of the network, with those that came with the task
    batch_size: int
    name: str | None = None  # what was asked for: a kind of task or a data set
    trials: Mapping[str, Any] | None = None  # several runs, of which the best is kept (`Sweep`)
    command: list[str] | None = None  # the verb, where it is not `finetune NAME`
    length: Mapping[str, Any] | None = None  # of several tasks: how long each stage is (`TrainingLength`)
    stated: list[str] | None = None  # keys that the plan or the command line sets
    batches: Mapping[str, int] | None = None  # of an epoch, for each task
    finetune: bool | None = None  # each task goes on by itself

    def parse_task_configs(self) -> dict[str, TaskConfig]:
        return {name: TaskConfig.from_json(card) for name, card in self.cards.items()}


@dataclass(frozen=True)
class Seq2SeqFinetuneSpec(FinetuneSpec):
    """Of tasks that are answered by writing."""

    pairs: int  # to train on
    steps_in_epoch: int
    longest: int  # tokens of the longest target
    metrics: Mapping[str, str]  # of each task, the one that counts
    command: list[str] | None = None
