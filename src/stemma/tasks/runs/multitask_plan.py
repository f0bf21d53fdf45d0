"""A plan of several tasks for one model, as a TOML file. Files are looked for beside it.

    epochs   = 5                      # or --epochs
    finetune = true                   # afterwards each task by itself, from the shared weights

    [training]                        # any of the recipe's
    learning_rate = 5e-5

    [tasks.entailment]
    dataset = "rte"                   # a data set in its own format, or a kind of task and named columns
    train   = "RTE/train.tsv"
    dev     = "RTE/dev.tsv"
    head    = "san"                   # of pairs; "linear" is usual
    weight  = 1.0                     # of its loss

Tasks that are text to text have no heads, and are drawn in turns (`mixture.py`); a plan holds tasks of one sort:

    temperature = 2.0                 # rates go by min(pairs, limit) ^ (1 / temperature)
    limit       = 65536

    [tasks.summarize]
    kind   = "seq2seq"
    prefix = "summarize: "            # this is also what is used if there is none
    train  = "abstracts.jsonl"
    dev    = "abstracts-dev.jsonl"
    metric = "rouge_l"
    weight = 1.0                      # of its rate
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import nn

from stemma.errors import UserError
from stemma.model import DISCRIMINATOR_HEAD
from stemma.network.network import POOLER
from stemma.objectives.base import LM_HEAD
from stemma.recipe_loading import recipe
from stemma.schema.base import BelowOne, Count, Positive, Settings
from stemma.schema.corpus import MixtureSettings
from stemma.tasks.datasets import task_kind_of
from stemma.tasks.kinds import example_kinds, head_task, task_kinds
from stemma.tasks.kinds.seq2seq import KIND as TEXT_TO_TEXT
from stemma.tasks.metrics import check_metrics
from stemma.tasks.runs.seq2seq_data import FILES, Seq2SeqData, Seq2SeqDataset, Seq2SeqMetric, pair_sources_for
from stemma.tasks.toml_plan import Problems, raise_problems, read_toml, validate_table
from stemma.text.parallel import COLUMNS

logger = logging.getLogger(__name__)

SPLITS = ("train", "dev", "test")
RESERVED_HEADS = {POOLER, LM_HEAD, DISCRIMINATOR_HEAD}  # heads of pre-training
LEGACY_TABLE = "task"  # the key of the tables [[task]], in which text-to-text plans used to be written


class MultitaskHeader(Settings):
    """What a plan says besides its tasks."""

    epochs: Positive | None = None
    finetune: bool = False
    temperature: Positive | None = None
    limit: Count | None = None
    training: dict[str, Any] = {}
    tasks: dict[str, Any] = {}


class MultitaskEntry(Settings):
    """A task that is answered by a head, as it stands in a plan."""

    list_keys: ClassVar[tuple[str, ...]] = ("metric",)  # keys of lists, where one value may stand alone

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
    def task_name(self) -> str:
        """How the examples are read: by a data set's name, or by the kind of task."""
        return self.dataset or self.kind or ""


class Seq2SeqEntry(Settings):
    """A text-to-text task, as it stands in a plan."""

    list_keys: ClassVar[tuple[str, ...]] = FILES

    kind: str
    prefix: str | None = None
    train: list[str]
    train_target: list[str] = []
    dev: list[str]
    dev_target: list[str] = []
    test: list[str] = []
    test_target: list[str] = []
    columns: str = COLUMNS
    metric: Seq2SeqMetric = "bleu"
    weight: Positive = 1.0


@dataclass(frozen=True)
class MultitaskPlan:
    path: Path
    tasks: dict[str, MultitaskEntry]  # answered by heads
    training: dict[str, Any]
    epochs: float | None
    finetune: bool
    pairs: dict[str, Seq2SeqDataset] = field(default_factory=dict)  # or text to text
    mixture: MixtureSettings | None = None

    def files(self, name: str) -> dict[str, Path]:
        return {part: self.path.parent / file for part in SPLITS if (file := getattr(self.tasks[name],
                                                                                     part)) is not None}

    def seq2seq_data(self) -> Seq2SeqData:
        """The text-to-text tasks; refused where the plan has others."""
        if not self.pairs:
            raise UserError(f"the tasks of {self.path} are answered by heads, and not by writing; learn them with "
                            f"`stemma multitask {self.path}`.")
        return Seq2SeqData(tuple(self.pairs.values()), self.mixture, {"tasks": [str(self.path.absolute())]},
                           self.training,
                    self.epochs, self.path.name)


def read_multitask_plan(path: str | Path) -> MultitaskPlan:
    """The plan, or all that is wrong with it."""
    path = Path(path)
    try:
        content = read_toml(path)
    except UserError as error:
        if twice := re.search(r"\('tasks', '([^']+)'\) twice \(at line (\d+)", error.message):
            raise UserError(f'{path}, line {twice[2]}: a second task "{twice[1]}"; give each its own name.') from error
        raise
    problems: Problems = []
    if LEGACY_TABLE in content:
        content = _upgrade_legacy_plan(content, problems)
        logger.warning(
            f"{path} has tables [[task]], as plans of text-to-text tasks used to have them; write [tasks.NAME] with "
            f'kind = "{TEXT_TO_TEXT}" now, in place of [[task]] with name = "NAME".')
    top = validate_table(MultitaskHeader, content, "", problems)
    tables = content.get("tasks")
    if not isinstance(tables, dict) or not tables:
        problems.append(("tasks", "a plan has a table [tasks.NAME] for each of its tasks"))
        tables = {}
    writing = {name for name, table in tables.items() if isinstance(table, dict) and table.get("kind") == TEXT_TO_TEXT}
    if writing and len(writing) < len(tables):
        others = [name for name in tables if name not in writing]
        problems.append(("tasks", f"{', '.join(sorted(writing))} {'is' if len(writing) == 1 else 'are'} text to text, "
                                  f"and {', '.join(others)} answered by a head: one run learns tasks of one sort; make "
                                  f'two plans, or put all of them as text, with kind = "{TEXT_TO_TEXT}"'))
    entries = {name: entry for name, table in tables.items() if name not in writing
               if (entry := _entry(name, table, path.parent, problems)) is not None}
    found = {name: entry for name in tables if name in writing
             if (entry := validate_entry(Seq2SeqEntry, tables[name], f"tasks.{name}.", problems)) is not None}
    pairs = {name: _seq2seq_dataset(name, entry, path.parent, problems) for name, entry in found.items()}
    if isinstance(training := content.get("training", {}), dict):
        problems += _training_problems(training)
    if top is not None:
        problems += _misplaced_keys(top, bool(writing))
    if problems or top is None:
        raise_problems(path, problems)
    weights = {name: entry.weight for name, entry in found.items() if entry.weight != 1.0}
    mixture = MixtureSettings(temperature=top.temperature or 1.0, limit=top.limit,
                              weights=weights or None) if pairs else None
    return MultitaskPlan(path, entries, top.training, top.epochs, top.finetune, pairs, mixture)


def _upgrade_legacy_plan(content: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """A plan of tables [[task]] as it is written now."""
    told, made = content[LEGACY_TABLE], dict(content.get("tasks", {}))
    if not isinstance(told, list):
        told = []
    names = [str(table.get("name", number)) for number, table in enumerate(told, 1) if isinstance(table, dict)]
    problems += [(f"tasks.{name}", f"{names.count(name)} tasks have this name; give each its own")
                 for name in dict.fromkeys(names) if names.count(name) > 1]
    for number, table in enumerate(told, 1):
        if not isinstance(table, dict):
            problems.append((f"task {number}", "must be a table: write [tasks.NAME] above its keys"))
            continue
        name = str(table.get("name", number))
        if "name" not in table:
            problems.append((f"tasks.{number}", "has no name: write it into the table's head, [tasks.NAME]"))
        made[name] = {"kind": TEXT_TO_TEXT, **{key: value for key, value in table.items() if key != "name"}}
    return {**{key: value for key, value in content.items() if key != LEGACY_TABLE}, "tasks": made}


def validate_entry(entry_type: type[Any], table: Mapping[str, Any], where: str, problems: Problems) -> Any:
    """A table as settings, where a single value may stand for a list of one."""
    listed = {key: [value] if key in entry_type.list_keys and isinstance(value, str) else value for key,
              value in table.items()}
    return validate_table(entry_type, listed, where, problems)


def _entry(name: str, table: object, beside: Path, problems: Problems) -> MultitaskEntry | None:
    where = f"tasks.{name}"
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        problems.append((where, "a task's name is made of letters, digits, - and _"))
    elif name in RESERVED_HEADS or hasattr(nn.ModuleDict(), name):
        problems.append((where, "the network uses this name itself; choose another"))
    if not isinstance(table, dict):
        problems.append((where, f"must be a table: write [tasks.{name}] above its keys"))
        return None
    entry: MultitaskEntry | None = validate_entry(MultitaskEntry, table, f"{where}.", problems)
    problems += [(f"{where}.{part} = {file}", f"there is no file {beside / file}") for part in SPLITS
                 if isinstance(file := table.get(part), str) and not (beside / file).exists()]
    if entry is not None:
        problems += [(f"{where}{key}", what) for key, what in _conflicts(entry)]
    return entry


def _seq2seq_dataset(name: str, entry: Seq2SeqEntry, beside: Path, problems: Problems) -> Seq2SeqDataset:
    """Where the pairs of a text-to-text task come from."""
    prefix = f"{name}: " if entry.prefix is None else entry.prefix
    files = {key: [str(beside / file) for file in getattr(entry, key)] for key in FILES}
    sources = {}
    for part in SPLITS:
        try:
            sources[part] = pair_sources_for(name, part, files, prefix, entry.columns) if files[part] else ()
        except UserError as error:
            problems.append((f"tasks.{name}.{part}", error.message))
            sources[part] = ()
    return Seq2SeqDataset(name, sources["train"], sources["dev"], sources["test"], entry.metric)


def _conflicts(entry: MultitaskEntry) -> Problems:
    """What no key shows by itself."""
    if (entry.kind is None) == (entry.dataset is None):
        said = "both are given" if entry.kind else "neither is given"
        return [("", f"{said}: name the kind of its own files, or the dataset in its official ones")]
    try:
        kind = task_kind_of(entry.task_name)
        if entry.kind and kind != entry.kind:
            raise UserError(f"must be one of {', '.join(task_kinds())}; a data set's name belongs to dataset.")
        if entry.dataset in example_kinds():
            raise UserError("is a kind of task and no data set; write it as kind.")
    except UserError as error:
        return [(f".{'kind' if entry.kind else 'dataset'} = {entry.task_name}", error.message)]
    found: Problems = []
    try:
        check_metrics(kind, entry.metric)
    except UserError as error:
        found.append((".metric", " ".join([error.message, *(what for _, what in error.problems)])))
    if entry.columns and entry.dataset:
        found.append((".columns", f"the columns of {entry.dataset} are known and cannot be renamed"))
    if entry.head == "san" and not head_task(kind).supports_san:
        found.append((".head = san", f"reads two texts to tell their class, and this task is of kind {kind}"))
    if entry.steps is not None and entry.head != "san":
        found.append((f".steps = {entry.steps}", 'are those of head = "san"'))
    if entry.dropout is not None and not head_task(kind).head_dropout:
        found.append((f".dropout = {entry.dropout}", "the head that finds answers has none"))
    return found


def _misplaced_keys(header: MultitaskHeader, is_seq2seq: bool) -> Problems:
    """Keys that the other sort of plan has."""
    if is_seq2seq:
        return [("finetune = true", "goes on with each head by itself, and text-to-text tasks have none; leave it out")
                ] if header.finetune else []
    stated = [key for key in ("temperature", "limit") if getattr(header, key) is not None]
    return [(f"{key} = {getattr(header, key)}",
             "says how often pairs of text-to-text tasks are drawn, and of these tasks "
                                             "every example is read once an epoch; leave it out") for key in stated]


def _training_problems(training: dict[str, object]) -> Problems:
    """Every recipe has the same keys here, so that any of them can tell."""
    try:
        recipe("bert").with_changes({"training": training}, "plan")
    except UserError as error:
        return error.problems
    return []
