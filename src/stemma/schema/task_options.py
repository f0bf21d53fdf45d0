"""What the learner of a fine-tuned task must know besides its labels, its head and its templates.

Each kind of task has a class of its own, registered with the kind (`tasks/kinds/`). A card keeps the values beside the
model's weights as JSON, in which only what was stated occurs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stemma import registry
from stemma.schema.base import Settings


class TaskOptions(Settings):
    """What all kinds have in common; each adds its own."""

    weight: float = 1.0  # of its loss, among several tasks
    counts: list[int] = []  # where answers are classes: how often each occurs in the training set, in their order
    balance: list[float] | str | None = None  # and the weight of each
    dataset: str | None = None  # the named data set that it was learnt from
    language: float | None = None  # weight of the language model's loss beside the task's (GPT's way)
    orders: int = 1  # 2: two texts are read in both orders

    stack: str | None = None  # of a model with two stacks: the one whose output the head reads

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)


def parse_task_options(kind: str, stated: Mapping[str, Any]) -> TaskOptions:
    """The checked values of a task of this kind."""
    values: TaskOptions = registry.get("task", kind).settings.model_validate(dict(stated))
    return values
