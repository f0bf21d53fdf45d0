"""Kinds of tasks: one object says all that finetune, predict, evaluate, multitask, pipeline and the lab ask of a kind.

Those that come with the program stand here, a file each; a user's own are registered in the same way (`registry.py`,
slot "task"). Nothing here imports torch before a learner is built, so that `--help` can list what there is.
"""

from __future__ import annotations

from stemma import registry
from stemma.errors import UserError, did_you_mean
from stemma.tasks.kinds.base import HeadTask, PredictInput, ReportTable, TaskKind

__all__ = ["PredictInput", "HeadTask", "ReportTable", "TaskKind", "example_kinds", "head_task", "task_kind",
           "task_kinds"]


def task_kind(name: str) -> TaskKind:
    """The kind of this name; whoever misspells it is told what there is."""
    found = registry.find("task", name)
    if found is None:
        known = task_kinds()
        raise UserError(f'no kind of task "{name}"; choose {", ".join(known)}.{did_you_mean(name, known)}')
    kind: TaskKind = found.build(name)
    return kind


def head_task(name: str) -> HeadTask:
    """The same where examples are answered by a head."""
    found = task_kind(name)
    if not isinstance(found, HeadTask):
        raise UserError(f"a task of the kind {name} is answered by writing, and has no head; choose "
                        f"{', '.join(example_kinds())}.")
    return found


def task_kinds() -> list[str]:
    return registry.kinds("task")


def example_kinds() -> list[str]:
    """The kinds that are learnt from examples, with a head."""
    return [name for name in task_kinds() if isinstance(task_kind(name), HeadTask)]
