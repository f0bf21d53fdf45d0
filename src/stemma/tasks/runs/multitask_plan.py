"""A multi-task plan as a TOML file. Paths are relative to it.

    epochs   = 5                      # or --epochs
    finetune = true                   # then fine-tune each task separately from the shared weights

    [training]                        # any keys of the recipe's [training]
    learning_rate = 5e-5

    [tasks.entailment]
    dataset = "rte"                   # a data set in its official format; or `kind` for a table of your own
    train   = "RTE/train.tsv"
    dev     = "RTE/dev.tsv"
    head    = "san"                   # for text pairs; default "linear"
    weight  = 1.0                     # loss weight

Text-to-text tasks have no heads, and are sampled (`seq2seq_data.py`). A plan must not mix both types:

    temperature = 2.0                 # sampling rate: min(pairs, limit) ^ (1 / temperature)
    limit       = 65536

    [tasks.summarize]
    kind   = "seq2seq"
    prefix = "summarize: "            # this is the default
    train  = "abstracts.jsonl"
    dev    = "abstracts-dev.jsonl"
    metric = "rouge_l"
    weight = 1.0                      # factor of its sampling rate
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
RESERVED_HEADS = {POOLER, LM_HEAD, DISCRIMINATOR_HEAD}  # heads of pre-training objectives
LEGACY_TABLE = "task"  # the key of [[task]] tables in old text-to-text plans


class MultitaskHeader(Settings):
    """The top-level keys of a plan."""

    epochs: Positive | None = None
    finetune: bool = False
    temperature: Positive | None = None
    limit: Count | None = None
    training: dict[str, Any] = {}
    tasks: dict[str, Any] = {}


class MultitaskEntry(Settings):
    """A task with a head, as written in a plan."""

    list_keys: ClassVar[tuple[str, ...]] = ("metric",)  # list keys that also accept a single string

    kind: str | None = None
    dataset: str | None = None
    train: str
    dev: str
    test: str | None = None
    columns: dict[str, str] = {}
    metric: list[str] = []
    weight: Positive = 1.0
    head: Literal["linear", "san"] = "linear"
    steps: Count | None = None  # of the SAN head; None: the default of the paper
    dropout: BelowOne | None = None  # of the head; None: the default of the model family

    @property
    def task_name(self) -> str:
        """The data set or task kind that determines how examples are read."""
        return self.dataset or self.kind or ""


class Seq2SeqEntry(Settings):
    """A text-to-text task, as written in a plan."""

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
    """A parsed and checked plan."""

    path: Path
    tasks: dict[str, MultitaskEntry]  # tasks with heads
    training: dict[str, Any]
    epochs: float | None
    finetune: bool
    pairs: dict[str, Seq2SeqDataset] = field(default_factory=dict)  # or text-to-text tasks
    mixture: MixtureSettings | None = None

    def files(self, name: str) -> dict[str, Path]:
        entry = self.tasks[name]
        return {split: self.path.parent / file for split in SPLITS if (file := getattr(entry, split)) is not None}

    def seq2seq_data(self) -> Seq2SeqData:
        """The text-to-text tasks; raises an error if the plan has tasks with heads."""
        if not self.pairs:
            raise UserError(f"the tasks of {self.path} have heads and do not generate text; train them with "
                            f"`stemma multitask {self.path}`.")
        return Seq2SeqData(tuple(self.pairs.values()), self.mixture, {"tasks": [str(self.path.absolute())]},
                           self.training, self.epochs, self.path.name)


def read_multitask_plan(path: str | Path) -> MultitaskPlan:
    """Read and check a plan; report all problems together."""
    path = Path(path)
    try:
        content = read_toml(path)
    except UserError as error:
        if duplicate := re.search(r"\('tasks', '([^']+)'\) twice \(at line (\d+)", error.message):
            raise UserError(f'{path}, line {duplicate[2]}: a second task "{duplicate[1]}"; give each its own name.') \
                from error
        raise
    problems: Problems = []
    if LEGACY_TABLE in content:
        content = _upgrade_legacy_plan(content, problems)
        logger.warning(
            f"{path} has tables [[task]], as plans of text-to-text tasks used to have them; write [tasks.NAME] with "
            f'kind = "{TEXT_TO_TEXT}" now, in place of [[task]] with name = "NAME".')
    header = validate_table(MultitaskHeader, content, "", problems)
    tables = content.get("tasks")
    if not isinstance(tables, dict) or not tables:
        problems.append(("tasks", "a plan has a table [tasks.NAME] for each of its tasks"))
        tables = {}
    seq2seq_names = {name for name, table in tables.items()
                     if isinstance(table, dict) and table.get("kind") == TEXT_TO_TEXT}
    if seq2seq_names and len(seq2seq_names) < len(tables):
        others = [name for name in tables if name not in seq2seq_names]
        verb, other_verb = "is" if len(seq2seq_names) == 1 else "are", "has" if len(others) == 1 else "have"
        problems.append(("tasks", f"{', '.join(sorted(seq2seq_names))} {verb} text to text, and {', '.join(others)} "
                                  f"{other_verb} a head: a plan cannot mix them; make two plans, or make all tasks "
                                  f'text to text, with kind = "{TEXT_TO_TEXT}"'))
    head_entries = {name: entry for name, table in tables.items() if name not in seq2seq_names
                    if (entry := _entry(name, table, path.parent, problems)) is not None}
    seq2seq_entries = {name: entry for name in tables if name in seq2seq_names
                       if (entry := validate_entry(Seq2SeqEntry, tables[name], f"tasks.{name}.", problems)) is not None}
    pairs = {name: _seq2seq_dataset(name, entry, path.parent, problems) for name, entry in seq2seq_entries.items()}
    if isinstance(training := content.get("training", {}), dict):
        problems += _training_problems(training)
    if header is not None:
        problems += _misplaced_keys(header, bool(seq2seq_names))
    if problems or header is None:
        raise_problems(path, problems)
    weights = {name: entry.weight for name, entry in seq2seq_entries.items() if entry.weight != 1.0}
    mixture = MixtureSettings(temperature=header.temperature or 1.0, limit=header.limit,
                              weights=weights or None) if pairs else None
    return MultitaskPlan(path, head_entries, header.training, header.epochs, header.finetune, pairs, mixture)


def _upgrade_legacy_plan(content: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """Convert [[task]] tables to [tasks.NAME] tables."""
    old, tables = content[LEGACY_TABLE], dict(content.get("tasks", {}))
    if not isinstance(old, list):
        old = []
    names = [str(table.get("name", number)) for number, table in enumerate(old, 1) if isinstance(table, dict)]
    problems += [(f"tasks.{name}", f"{names.count(name)} tasks have this name; give each its own")
                 for name in dict.fromkeys(names) if names.count(name) > 1]
    for number, table in enumerate(old, 1):
        if not isinstance(table, dict):
            problems.append((f"task {number}", "must be a table: write [tasks.NAME] above its keys"))
            continue
        name = str(table.get("name", number))
        if "name" not in table:
            problems.append((f"tasks.{number}", "has no name: write it into the table's head, [tasks.NAME]"))
        tables[name] = {"kind": TEXT_TO_TEXT, **{key: value for key, value in table.items() if key != "name"}}
    return {**{key: value for key, value in content.items() if key != LEGACY_TABLE}, "tasks": tables}


def validate_entry(entry_type: type[Any], table: Mapping[str, Any], where: str, problems: Problems) -> Any:
    """Validate a table; a single string is accepted for a list."""
    listed = {key: [value] if key in entry_type.list_keys and isinstance(value, str) else value
              for key, value in table.items()}
    return validate_table(entry_type, listed, where, problems)


def _entry(name: str, table: object, folder: Path, problems: Problems) -> MultitaskEntry | None:
    where = f"tasks.{name}"
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        problems.append((where, "a task's name is made of letters, digits, - and _"))
    elif name in RESERVED_HEADS or hasattr(nn.ModuleDict(), name):
        problems.append((where, "the network uses this name itself; choose another"))
    if not isinstance(table, dict):
        problems.append((where, f"must be a table: write [tasks.{name}] above its keys"))
        return None
    entry: MultitaskEntry | None = validate_entry(MultitaskEntry, table, f"{where}.", problems)
    problems += [(f"{where}.{split} = {file}", f"there is no file {folder / file}") for split in SPLITS
                 if isinstance(file := table.get(split), str) and not (folder / file).exists()]
    if entry is not None:
        problems += [(f"{where}{key}", what) for key, what in _conflicts(entry)]
    return entry


def _seq2seq_dataset(name: str, entry: Seq2SeqEntry, folder: Path, problems: Problems) -> Seq2SeqDataset:
    """The pair sources of a text-to-text task."""
    prefix = f"{name}: " if entry.prefix is None else entry.prefix
    files = {key: [str(folder / file) for file in getattr(entry, key)] for key in FILES}
    sources = {}
    for split in SPLITS:
        try:
            sources[split] = pair_sources_for(name, split, files, prefix, entry.columns) if files[split] else ()
        except UserError as error:
            problems.append((f"tasks.{name}.{split}", error.message))
            sources[split] = ()
    return Seq2SeqDataset(name, sources["train"], sources["dev"], sources["test"], entry.metric)


def _conflicts(entry: MultitaskEntry) -> Problems:
    """Conflicts between the keys of an entry."""
    if (entry.kind is None) == (entry.dataset is None):
        given = "both are given" if entry.kind else "neither is given"
        return [("", f"{given}: name the kind of its own files, or the dataset in its official ones")]
    try:
        kind = task_kind_of(entry.task_name)
        if entry.kind and kind != entry.kind:
            raise UserError(f"must be one of {', '.join(task_kinds())}; a data set's name belongs to dataset.")
        if entry.dataset in example_kinds():
            raise UserError("is a kind of task and no data set; write it as kind.")
    except UserError as error:
        return [(f".{'kind' if entry.kind else 'dataset'} = {entry.task_name}", error.message)]
    problems: Problems = []
    try:
        check_metrics(kind, entry.metric)
    except UserError as error:
        problems.append((".metric", " ".join([error.message, *(problem for _, problem in error.problems)])))
    if entry.columns and entry.dataset:
        problems.append((".columns", f"the columns of {entry.dataset} are known and cannot be renamed"))
    if entry.head == "san" and not head_task(kind).supports_san:
        problems.append((".head = san", f"classifies text pairs, and this task is of kind {kind}"))
    if entry.steps is not None and entry.head != "san":
        problems.append((f".steps = {entry.steps}", 'are those of head = "san"'))
    if entry.dropout is not None and not head_task(kind).head_dropout:
        problems.append((f".dropout = {entry.dropout}", "the head that finds answers has none"))
    return problems


def _misplaced_keys(header: MultitaskHeader, is_seq2seq: bool) -> Problems:
    """Keys that belong to the other type of plan."""
    if is_seq2seq:
        return [("finetune = true", "fine-tunes each head separately, and text-to-text tasks have none; leave it out")
                ] if header.finetune else []
    stated = [key for key in ("temperature", "limit") if getattr(header, key) is not None]
    return [(f"{key} = {getattr(header, key)}",
             "sets how often text-to-text tasks are sampled, and these tasks use every example once per epoch; "
             "leave it out") for key in stated]


def _training_problems(training: dict[str, object]) -> Problems:
    """Check [training] against any recipe: all have the same keys."""
    try:
        recipe("bert").with_changes({"training": training}, "plan")
    except UserError as error:
        return error.problems
    return []
