"""A plan of several tasks for one encoder, as a TOML file. Files are looked for beside it.

    epochs   = 5                      # or --epochs
    finetune = true                   # afterwards each task by itself, from the shared weights

    [training]                        # any of the recipe's
    learning_rate = 5e-5

    [tasks.entailment]
    dataset = "rte"                   # a data set in its own format, or kind = "pair" and named columns
    train   = "RTE/train.tsv"
    dev     = "RTE/dev.tsv"
    head    = "san"                   # of pairs; "linear" is usual
    weight  = 1.0                     # of its loss
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from stemma.errors import UserError
from stemma.exchange.model import JUDGE
from stemma.lineage import recipe
from stemma.network.network import POOLER
from stemma.objectives.base import VOCABULARY
from stemma.schema.base import BelowOne, Count, Positive, Settings
from stemma.tasks.data.datasets import kind_of
from stemma.tasks.kinds import example_kinds, head_task
from stemma.tasks.metrics import check_metrics
from stemma.tasks.plan_files import Problems, checked, read_toml, refuse

SETS = ("train", "dev", "test")
TAKEN = {POOLER, VOCABULARY, JUDGE}  # heads of pre-training


class Top(Settings):
    """What a plan says besides its tasks."""

    epochs: Positive | None = None
    finetune: bool = False
    training: dict[str, Any] = {}
    tasks: dict[str, Any] = {}


class Entry(Settings):
    """A task as it stands in a plan."""

    kind: str | None = None
    dataset: str | None = None
    train: str
    dev: str
    test: str | None = None
    columns: dict[str, str] = {}
    metric: list[str] = []
    weight: Positive = 1.0
    head: Literal["linear", "san"] = "linear"
    steps: Count | None = None  # of the SAN head; None: as in the paper
    dropout: BelowOne | None = None  # before the answer; None: as the model's family has it

    @property
    def called(self) -> str:
        """How the examples are read: by a data set's name, or by the kind of task."""
        return self.dataset or self.kind or ""


@dataclass(frozen=True)
class TaskPlan:
    path: Path
    tasks: dict[str, Entry]
    training: dict[str, Any]
    epochs: float | None
    finetune: bool

    def files(self, name: str) -> dict[str, Path]:
        return {part: self.path.parent / file for part in SETS if (file := getattr(self.tasks[name], part)) is not None}


def read_task_plan(path: str | Path) -> TaskPlan:
    """The plan, or all that is wrong with it."""
    path = Path(path)
    try:
        content = read_toml(path)
    except UserError as error:
        if twice := re.search(r"\('tasks', '([^']+)'\) twice \(at line (\d+)", error.message):
            raise UserError(f'{path}, line {twice[2]}: a second task "{twice[1]}"; give each its own name.') from error
        raise
    problems: Problems = []
    top = checked(Top, content, "", problems)
    tables = content.get("tasks")
    if not isinstance(tables, dict) or not tables:
        problems.append(("tasks", "a plan has a table [tasks.NAME] for each of its tasks"))
        tables = {}
    entries = {name: entry for name, table in tables.items()
               if (entry := _entry(name, table, path.parent, problems)) is not None}
    if isinstance(training := content.get("training", {}), dict):
        problems += _training_problems(training)
    if problems or top is None:
        refuse(path, problems)
    return TaskPlan(path, entries, top.training, top.epochs, top.finetune)


def _entry(name: str, table: Any, beside: Path, problems: Problems) -> Entry | None:
    where = f"tasks.{name}"
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        problems.append((where, "a task's name is made of letters, digits, - and _"))
    elif name in TAKEN or hasattr(nn.ModuleDict(), name):
        problems.append((where, "the network uses this name itself; choose another"))
    if not isinstance(table, dict):
        problems.append((where, f"must be a table: write [tasks.{name}] above its keys"))
        return None
    listed = {key: [value] if key == "metric" and isinstance(value, str) else value for key, value in table.items()}
    entry = checked(Entry, listed, f"{where}.", problems)
    problems += [(f"{where}.{part} = {file}", f"there is no file {beside / file}") for part in SETS
                 if isinstance(file := table.get(part), str) and not (beside / file).exists()]
    if entry is not None:
        problems += [(f"{where}{key}", what) for key, what in _conflicts(entry)]
    return entry


def _conflicts(entry: Entry) -> Problems:
    """What no key shows by itself."""
    if (entry.kind is None) == (entry.dataset is None):
        said = "both are given" if entry.kind else "neither is given"
        return [("", f"{said}: name the kind of its own files, or the dataset in its official ones")]
    try:
        kind = kind_of(entry.called)
        if entry.kind and kind != entry.kind:
            raise UserError(f"must be one of {', '.join(example_kinds())}; a data set's name belongs to dataset.")
        if entry.dataset in example_kinds():
            raise UserError("is a kind of task and no data set; write it as kind.")
    except UserError as error:
        return [(f".{'kind' if entry.kind else 'dataset'} = {entry.called}", error.message)]
    found: Problems = []
    try:
        check_metrics(kind, entry.metric)
    except UserError as error:
        found.append((".metric", " ".join([error.message, *(what for _, what in error.problems)])))
    if entry.columns and entry.dataset:
        found.append((".columns", f"the columns of {entry.dataset} are known and cannot be renamed"))
    if entry.head == "san" and not head_task(kind).two_text_heads:
        found.append((".head = san", f"reads two texts to tell their class, and this task is of kind {kind}"))
    if entry.steps is not None and entry.head != "san":
        found.append((f".steps = {entry.steps}", 'are those of head = "san"'))
    if entry.dropout is not None and not head_task(kind).head_dropout:
        found.append((f".dropout = {entry.dropout}", "the head that finds answers has none"))
    return found


def _training_problems(training: dict[str, Any]) -> Problems:
    """Every recipe has the same keys here, so that any of them can tell."""
    try:
        recipe("bert").with_changes({"training": training}, "plan")
    except UserError as error:
        return error.problems
    return []
