"""The linear baseline of an experiment's tasks: one for each task, with the examples and metrics of the fine-tunings.

It depends on no variant and no seed, so it is fitted once and stored in the lab's folder.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from stemma.atomic_files import DiskFullError, FolderLockedError
from stemma.errors import UserError
from stemma.lab.cells import short_digest
from stemma.lab.downstream_tasks import resolve_task_kind
from stemma.lab.experiment import DownstreamTask, Experiment
from stemma.lab.input_files import check_examples
from stemma.notes import silenced
from stemma.schema.task_options import parse_task_options
from stemma.task_config import DEFAULT_TASK, TaskConfig
from stemma.tasks.datasets import DATASETS
from stemma.tasks.kinds import HeadTask, task_kind
from stemma.tasks.runs.baseline_scores import baseline_scores
from stemma.tasks.runs.finetune import TaskArguments, labels_for, read_splits
from stemma.training.run_folder import TextReadingOptions
from stemma.training.run_graph import RunNode

logger = logging.getLogger(__name__)

FOLDER = "baselines"
WAIT_SECONDS = 1.0  # while another process fits it


def score_baselines(experiment: Experiment, folder: Path) -> list[str]:
    """Fit and store the baselines that are missing. Returns a note for each that cannot be fitted now: the report does
    not depend on it."""
    notes = []
    for task in experiment.tasks if experiment.baseline else ():
        if not _has_baseline(task):
            continue
        try:
            _fit_baseline(task, folder)
        except DiskFullError:
            raise
        except UserError as error:
            reasons = [": ".join(filter(None, problem)) for problem in error.problems]
            notes.append(f"{task.name} has no linear baseline: {'; '.join([error.message, *reasons])}")
            logger.warning(notes[-1])
    return notes


def _fit_baseline(task: DownstreamTask, folder: Path) -> None:
    node = _node(task, folder)
    while node.result() is None:
        try:
            with node.lock():
                if node.result() is None:
                    check_examples(task)
                    node.finish(_score(task))
        except FolderLockedError:
            time.sleep(WAIT_SECONDS)


def stored_baseline(experiment: Experiment, task: DownstreamTask, folder: Path) -> dict[str, float]:
    """The dev scores of the baseline by metric; empty if there is none."""
    if not experiment.baseline or not _has_baseline(task):
        return {}
    scores = (_node(task, folder).result() or {}).get("dev", {})
    return {name: value for name, value in scores.items() if name != "examples"}


def _has_baseline(task: DownstreamTask) -> bool:
    kind = task_kind(resolve_task_kind(task.name))
    return isinstance(kind, HeadTask) and kind.linear_baseline is not None


def _node(task: DownstreamTask, folder: Path) -> RunNode:
    digests = task.file_digests()
    digest = short_digest(task.name, dict(task.columns), digests["train"], digests["dev"])
    path = folder / FOLDER / digest
    return RunNode(path, f"delete {path}, and `stemma resume {folder}` makes it again.")


def _score(task: DownstreamTask) -> dict[str, Any]:
    arguments = TaskArguments(task.name, {"train": task.train, "dev": task.dev}, dict(task.columns) or None)
    kind = task_kind(arguments.kind)
    with silenced():  # the fine-tunings have reported it
        examples = read_splits(arguments, TextReadingOptions())
    labels = labels_for(arguments, examples["train"]) if isinstance(kind, HeadTask) and kind.has_classes else ()
    metrics = DATASETS[task.name].metrics if task.name in DATASETS else kind.default_metrics
    # it needs the labels and metrics alone: no head, no templates
    task_config = TaskConfig(DEFAULT_TASK, arguments.kind, tuple(labels), {}, "", "", 0, tuple(metrics),
                             parse_task_options(arguments.kind, {}))
    return baseline_scores(task_config, examples) or {}
