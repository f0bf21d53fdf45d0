"""Files that a lab reads again when it goes on: the examples of its tasks, and minimal pairs.

Their digests are stored when the lab is made. So a finished lab needs them no more, and an unfinished one does not mix
results of different files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from stemma.atomic_files import sha256
from stemma.errors import UserError
from stemma.lab.blimp import pairs_digest
from stemma.lab.experiment import DownstreamTask, Experiment


def with_digests(experiment: Experiment) -> Experiment:
    """The experiment with the digests of its files as they are now."""
    tasks = tuple(replace(task, digests=replace(task, digests={}).file_digests()) for task in experiment.tasks)
    return replace(experiment, tasks=tasks,
                   blimp_digest=None if experiment.blimp is None else pairs_digest(experiment.blimp))


def check_files(experiment: Experiment) -> None:
    """Refuse to go on with other files than those the lab was made with."""
    _refuse([*_changed_pairs(experiment), *(line for task in experiment.tasks for line in _changed_examples(task))])


def check_examples(task: DownstreamTask) -> None:
    """The same for the examples of one task."""
    _refuse(list(_changed_examples(task)))


def check_pairs(experiment: Experiment) -> None:
    """The same for the minimal pairs."""
    _refuse(list(_changed_pairs(experiment)))


def _refuse(problems: Sequence[tuple[str, str]]) -> None:
    if problems:
        raise UserError("this lab was made with other files, and its results cannot be mixed with new ones; bring them "
                        "back, or give the command that made the lab again", problems)


def _changed_examples(task: DownstreamTask) -> Iterator[tuple[str, str]]:
    for name, file in task.files.items():
        if not Path(file).is_file():
            yield file, "is missing"
        elif task.digests and sha256(Path(file)) != task.digests[name]:
            yield file, "has changed"


def _changed_pairs(experiment: Experiment) -> Iterator[tuple[str, str]]:
    if experiment.blimp is None:
        return
    if not Path(experiment.blimp).exists():
        yield experiment.blimp, "is missing"
    elif experiment.blimp_digest not in (None, pairs_digest(experiment.blimp)):
        yield experiment.blimp, "has changed"
