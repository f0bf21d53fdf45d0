"""Options of a fine-tuned task, besides its labels, head and templates.

Each kind of task has its own class, registered with the kind (`tasks/kinds/`). The model folder stores the options as
JSON, without defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stemma import registry
from stemma.schema.base import Settings


class TaskOptions(Settings):
    """Options of all kinds of tasks; each kind adds its own."""

    weight: float = 1.0  # of its loss, in multi-task training
    counts: list[int] = []  # for classification: frequency of each class in the training set
    balance: list[float] | str | None = None  # and class weights
    dataset: str | None = None  # name of the training data set
    language: float | None = None  # weight of an auxiliary language-model loss (GPT)
    orders: int = 1  # 2: encode two texts in both orders

    stack: str | None = None  # for an encoder-decoder: the part whose output the head uses

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)


def parse_task_options(kind: str, stated: Mapping[str, Any]) -> TaskOptions:
    """Validated options of a task of this kind."""
    values: TaskOptions = registry.get("task", kind).settings.model_validate(dict(stated))
    return values
