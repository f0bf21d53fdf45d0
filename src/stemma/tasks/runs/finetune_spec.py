"""The fine-tuning section of `run.json` (`RunConfig.task`): the task, and what training and scoring need.

Fields that are None are not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from stemma.task_config import TaskConfig
from stemma.training.run_folder import RunConfig

MULTITASK = "multitask"  # the kind of a multi-task run


@dataclass(frozen=True)
class FinetuneSpec:
    """Fields of every fine-tuning run."""

    kind: str  # a task kind, or MULTITASK
    options: Mapping[str, Any]  # command-line options, to repeat the run
    changes: list[str]  # KEY=VALUE overrides

    @classmethod
    def from_run_config(cls, run_config: RunConfig) -> Self:
        assert run_config.task is not None
        names = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in run_config.task.items() if key in names})

    def to_json(self) -> dict[str, Any]:
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


@dataclass(frozen=True)
class HeadFinetuneSpec(FinetuneSpec):
    """Fields of tasks with heads."""

    cards: Mapping[str, Any]  # task configs by name, as JSON
    vocabulary: int  # vocabulary size, with tokens that the task adds
    batch_size: int
    name: str | None = None  # a task kind or a data set
    trials: Mapping[str, Any] | None = None  # the settings of a sweep (`Sweep`)
    command: list[str] | None = None  # the command, if not `finetune NAME`
    length: Mapping[str, Any] | None = None  # multi-task: the length of each stage (`TrainingLength`)
    stated: list[str] | None = None  # keys set by the plan or the command line
    batches: Mapping[str, int] | None = None  # batches per epoch of each task
    finetune: bool | None = None  # fine-tune each task separately afterwards
    baseline: bool | None = None  # False: no linear baseline
    defaults: Mapping[str, Any] | None = None  # the values that no one stated, and why they were chosen
    pretraining: Mapping[str, Any] | None = None  # the record of the model to start from (`PretrainingRecord`)
    find_rate: bool | None = None  # find the learning rate first

    def parse_task_configs(self) -> dict[str, TaskConfig]:
        return {name: TaskConfig.from_json(stored) for name, stored in self.cards.items()}


@dataclass(frozen=True)
class Seq2SeqFinetuneSpec(FinetuneSpec):
    """Fields of sequence-to-sequence tasks."""

    pairs: int  # training pairs
    steps_in_epoch: int
    longest: int  # tokens of the longest target
    metrics: Mapping[str, str]  # the selection metric of each task
    command: list[str] | None = None
    defaults: Mapping[str, Any] | None = None
    pretraining: Mapping[str, Any] | None = None
    find_rate: bool | None = None
