"""One model, several tasks: all of them are text to text, and a prefix says which is meant (T5, arXiv:1910.10683).

A plan is a TOML file: how often each task is drawn (section 3.5.2 of the paper), and the files of each, which are
looked for beside the plan.

    temperature = 2.0           # rates go by min(pairs, limit) ^ (1 / temperature)
    limit       = 65536

    [[task]]
    name   = "summarize"
    prefix = "summarize: "      # this is also what is used if there is none
    train  = "abstracts.jsonl"
    dev    = "abstracts-dev.jsonl"
    metric = "rouge_l"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stemma.errors import UserError
from stemma.schema.base import Settings
from stemma.schema.corpus import Mixture
from stemma.tasks.kinds.seq2seq import KIND
from stemma.tasks.plan_files import Problems, checked, read_toml, refuse
from stemma.text.parallel import COLUMNS, PairSource, pair_sources
from stemma.training.run import is_stream

Metric = Literal["bleu", "chrf", "rouge_l", "exact_match"]
SETS = ("train", "dev", "test")
FILES = tuple(f"{name}{side}" for name in SETS for side in ("", "_target"))


@dataclass(frozen=True)
class Task:
    """Where the pairs of one task come from."""

    name: str
    train: tuple[PairSource, ...]
    dev: tuple[PairSource, ...]
    test: tuple[PairSource, ...] = ()
    metric: Metric = "bleu"  # the one that counts, where several tasks are taken together


@dataclass(frozen=True)
class Data:
    tasks: tuple[Task, ...]
    mixture: Mixture | None = None  # None: one task, not a plan
    options: dict[str, Any] | None = None  # how the command line spelled it, to be repeated


class Entry(Settings):
    """A [[task]] as it stands in a plan."""

    name: str
    prefix: str | None = None
    train: list[str]
    train_target: list[str] = []
    dev: list[str]
    dev_target: list[str] = []
    test: list[str] = []
    test_target: list[str] = []
    columns: str = COLUMNS
    metric: Metric = "bleu"


def one_task(files: dict[str, Sequence[str]], prefix: str = "", columns: str = COLUMNS) -> Data:
    """The task of a command line; `files` by train, train_target, dev and so on."""
    files = {key: [str(path) for path in paths] for key, paths in files.items() if paths}
    for name in SETS:
        if f"{name}_target" in files and name not in files:
            raise UserError(f"--{name}-target is the other side of --{name}, which is missing.")
    sources = {name: _sources(KIND, name, files, prefix, columns) for name in SETS if name in files}
    spelled = {key: [str(Path(path).absolute()) for path in paths] for key, paths in files.items()}
    stated = {key: value for key, value, usual in (("prefix", prefix, ""), ("columns", columns, COLUMNS))
              if value != usual}
    return Data((Task(KIND, sources["train"], sources["dev"], sources.get("test", ())),),
                options={**spelled, **stated})


def read_plan(path: str | Path) -> Data:
    """The tasks of a plan, or all that is wrong with it."""
    path = Path(path)
    content = read_toml(path)
    entries = content.pop("task", [])
    problems: Problems = []
    mixture = checked(Mixture, content, "", problems)
    if not isinstance(entries, list) or not entries:
        problems.append(("task", "a plan has a table [[task]] for each of its tasks"))
        entries = []
    tasks = [_task(number, entry, path.parent, problems) for number, entry in enumerate(entries, 1)]
    names = [task.name for task in tasks if task is not None]
    problems += [(f"task {name}", f"{names.count(name)} tasks have this name; give each its own")
                 for name in dict.fromkeys(names) if names.count(name) > 1]
    if problems or mixture is None:
        refuse(path, problems)
    return Data(tuple(task for task in tasks if task is not None), mixture, {"tasks": [str(path.absolute())]})


def _task(number: int, entry: Any, beside: Path, problems: Problems) -> Task | None:
    if not isinstance(entry, dict):
        problems.append((f"task {number}", "must be a table: write [[task]] above it"))
        return None
    where = f"task {entry.get('name', number)}: "
    listed = {key: [value] if key in FILES and isinstance(value, str) else value for key, value in entry.items()}
    found = checked(Entry, listed, where, problems)
    if found is None:
        return None
    prefix = f"{found.name}: " if found.prefix is None else found.prefix
    files = {key: [str(beside / file) for file in getattr(found, key)] for key in FILES}
    sources = {}
    for name in SETS:
        try:
            sources[name] = _sources(found.name, name, files, prefix, found.columns) if files[name] else ()
        except UserError as error:
            problems.append((f"{where}{name}", error.message))
            sources[name] = ()
    return Task(found.name, sources["train"], sources["dev"], sources["test"], found.metric)


def _sources(task: str, name: str, files: dict[str, Any], prefix: str, columns: str) -> tuple[PairSource, ...]:
    """One set of a task. It is read more than once, so it cannot come from a pipe."""
    paths, targets = files[name], files.get(f"{name}_target", [])
    if stream := next(filter(is_stream, (*paths, *targets)), None):
        raise UserError(f"{stream} can be read only once, and the pairs of {name} are read again to be scored; give "
                        "a file.")
    called = task if name == "train" else f"{task}, {name}"
    return tuple(PairSource(found.path, found.target, called, prefix, found.columns)
                 for found in pair_sources(paths, targets, columns))
