"""Task kinds: one class per kind, used by finetune, predict, evaluate, multitask, pipeline and the lab.

Each built-in kind has its own file. Users register their own kinds the same way (`registry.py`, slot "task"). Nothing
here imports torch before an objective is built, so `--help` can list the kinds quickly.
"""

from __future__ import annotations

from stemma import registry
from stemma.errors import UserError, did_you_mean
from stemma.tasks.kinds.base import HeadTask, PredictInput, ReportTable, TaskKind

__all__ = ["PredictInput", "HeadTask", "ReportTable", "TaskKind", "example_kinds", "head_task", "task_kind",
           "task_kinds"]


def task_kind(name: str) -> TaskKind:
    """Look up a task kind by name; an unknown name raises an error that lists all kinds."""
    registered = registry.find("task", name)
    if registered is None:
        kinds = task_kinds()
        raise UserError(f'no kind of task "{name}"; choose {", ".join(kinds)}.{did_you_mean(name, kinds)}')
    kind: TaskKind = registered.build(name)
    return kind


def head_task(name: str) -> HeadTask:
    """Look up a task kind that predicts with a head."""
    kind = task_kind(name)
    if not isinstance(kind, HeadTask):
        raise UserError(f"a task of the kind {name} is answered by generating text, and has no head; choose "
                        f"{', '.join(example_kinds())}.")
    return kind


def task_kinds() -> list[str]:
    return registry.kinds("task")


def example_kinds() -> list[str]:
    """The kinds that train a head on examples."""
    return [name for name in task_kinds() if isinstance(task_kind(name), HeadTask)]
