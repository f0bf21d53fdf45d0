"""A plan in TOML: which stages there are, what each learns from, and on top of which it stands.

    general = "encyclopedia.txt"      # what must not be forgotten; by default the text of the first stage
    ablate  = true                    # fine-tune from the model of every stage, to see which of them paid off
    seeds   = 3

    [stages.general]
    model = "downloaded/bert"         # or recipe = "bert@tiny" and corpus = "encyclopedia.txt"

    [stages.domain]
    corpus = "papers/*.txt"
    steps  = 2000
    replay = 0.1                      # a tenth of what is read is general text

    [stages.task]
    texts_of = "finetune"             # the texts of its examples, without their labels
    epochs   = 20

    [stages.finetune]
    task        = "classify"
    train       = "train.tsv"
    dev         = "dev.tsv"
    interpolate = [0.5, 0.75, 1.0]    # how much of what was learnt is kept; dev decides

A stage stands on the one above it, or on the one that `after` names. Paths are looked for beside the plan.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ValidationError

from stemma import toml
from stemma.errors import UserError, did_you_mean
from stemma.schema.base import Count, Natural, Positive, Probability, Settings, Share
from stemma.schema.problems import explain
from stemma.tasks.data.datasets import kind_of
from stemma.tasks.prepare import Task
from stemma.text.readers import list_files
from stemma.training.run import Reading, is_corpus, is_stream

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
BUDGETS = ("steps", "tokens", "minutes", "epochs")
READING = ("documents", "field", "encoding", "errors")
TEXT_ONLY = ("recipe", "corpus", "texts_of", "replay", "tokens", "documents", "field")
TASK_ONLY = ("task", "train", "dev", "test", "columns", "metric")
Listed = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
Shares = Annotated[list[Probability], BeforeValidator(lambda value: value if isinstance(value, list) else [value])]
Problems = list[tuple[str, str]]


class Entry(Settings):
    """A [stages.NAME] as it stands in a plan."""

    after: str | None = None
    model: str | None = None
    recipe: str | None = None
    corpus: Listed = []
    texts_of: str | None = None
    task: str | None = None
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    columns: dict[str, str] = {}
    metric: Listed = []
    steps: Count | None = None
    tokens: Count | None = None
    minutes: Positive | None = None
    epochs: Positive | None = None
    changes: Listed = []
    seed: Natural | None = None
    replay: Share | None = None
    interpolate: Shares = []
    documents: str = "blank"
    field: str = "text"
    encoding: str = "utf-8"
    errors: str = "strict"

    @property
    def kind(self) -> str:
        """model: it is there already; text: a language model learns; task: examples are learnt."""
        stated = self.model_fields_set
        return "model" if "model" in stated else "task" if stated & set(TASK_ONLY) else "text"


class Header(Settings):
    """What stands above the stages."""

    general: Listed = []
    seed: Natural = 0
    ablate: bool = False
    seeds: Count = 1
    ngram: Count = 8
    contamination: Literal["warn", "refuse"] = "warn"


@dataclass(frozen=True)
class Stage:
    name: str
    after: str | None  # the stage that it starts from; None: it is the first of its line
    entry: Entry
    seed: int

    @property
    def kind(self) -> str:
        return self.entry.kind

    @property
    def reading(self) -> Reading:
        return Reading(**{key: getattr(self.entry, key) for key in READING})

    def budget(self) -> dict[str, Any]:
        return {key: value for key in BUDGETS if (value := getattr(self.entry, key)) is not None}

    def as_task(self) -> Task:
        entry = self.entry
        files = {part: path for part in ("train", "dev", "test") if (path := getattr(entry, part)) is not None}
        return Task(entry.task or "", files, entry.columns or None, entry.metric)


@dataclass(frozen=True)
class PipelinePlan:
    header: Header
    stages: dict[str, Stage]  # in an order in which each comes after the one that it stands on

    def line(self, name: str) -> list[Stage]:
        """A stage and those that it stands on, the first one first."""
        stage = self.stages[name]
        return [*(self.line(stage.after) if stage.after else []), stage]

    def of_kind(self, kind: str) -> list[Stage]:
        return [stage for stage in self.stages.values() if stage.kind == kind]

    def general(self) -> tuple[list[str], Reading]:
        """The general text: what the plan names, or what the first stage learns from; none where neither does."""
        first = next(iter(self.stages.values()))
        return (self.header.general, Reading()) if self.header.general else (first.entry.corpus, first.reading)

    def to_toml(self) -> str:
        """The plan with absolute paths, so that it holds wherever it lies."""
        header = self.header.model_dump(exclude_unset=True)
        tables = {}
        for name, stage in self.stages.items():
            stated = stage.entry.model_dump(exclude_unset=True)
            tables[name] = {**stated, "after": stage.after} if stage.after else stated
        return "# The plan as it runs; its paths are absolute.\n" + toml.dumps({**header, "stages": tables})


def read_plan(path: str | Path) -> PipelinePlan:
    """The plan, or all that is wrong with it."""
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the plan {path}: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}.") from error
    problems: Problems = []
    tables = content.pop("stages", {})
    header = _checked(Header, _absolute(content, ("general",), path.parent), "", problems)
    if not isinstance(tables, dict) or not tables:
        problems.append(("stages", "a plan has a table [stages.NAME] for each of its stages"))
        tables = {}
    entries: dict[str, Entry] = {}
    for name, table in tables.items():
        if not NAME.fullmatch(name):
            problems.append((f"stages.{name}", "a stage is also a folder: use letters, digits, - and _"))
        if not isinstance(table, dict):
            problems.append((f"stages.{name}", f"must be a table: write [stages.{name}] above it"))
            continue
        table = _absolute(table, ("corpus", "train", "dev", "test", "model"), path.parent)
        if (found := _checked(Entry, table, f"stages.{name}.", problems)) is not None:
            entries[name] = found
    whole = len(entries) == len(tables) and header is not None
    after = _standing(entries, list(tables), problems)
    for name, entry in entries.items():
        problems += [(f"stages.{name}{f'.{key}' if key else ''}", what) for key, what in _wrong(name, entry, entries)]
    if whole and not problems:
        assert header is not None
        stages = {}
        for name in _ordered(after):
            own = entries[name].seed
            stages[name] = Stage(name, after[name], entries[name], header.seed if own is None else own)
        plan = PipelinePlan(header, stages)
        problems += _wrong_together(plan)
    if problems:
        raise UserError(f"{len(problems)} problem{'s' if len(problems) > 1 else ''} in the plan {path}", problems)
    return plan


def _checked(kind: Any, values: dict[str, Any], where: str, problems: Problems) -> Any:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        known = list(kind.model_fields)
        for problem in explain(error, values, kind):
            unknown = problem.key.partition(".")[0] not in known
            hint = did_you_mean(problem.key, known) or f" It has {', '.join(known)}."
            problems.append((f"{where}{problem.place}", f"no such key.{hint}" if unknown else problem.message))
        return None


def _absolute(table: Mapping[str, Any], keys: tuple[str, ...], beside: Path) -> dict[str, Any]:
    """Paths as seen from the plan. A model that is not there may be a hub id: it stays as it is."""
    def place(key: str, value: Any) -> Any:
        if not isinstance(value, str) or value == "-" or key == "model" and not (beside / value).exists():
            return value
        return str((beside / value).absolute())

    return {key: ([place(key, one) for one in value] if isinstance(value, list) else place(key, value))
            if key in keys else value for key, value in table.items()}


# --- who stands on whom -----------------------------------------------------------------------------------------------


def _standing(entries: Mapping[str, Entry], names: list[str], problems: Problems) -> dict[str, str | None]:
    """By stage, the one that it starts from; problems that make this impossible are noted."""
    after: dict[str, str | None] = {}
    for name, entry in entries.items():
        before = names[names.index(name) - 1] if names.index(name) else None
        after[name] = entry.after or (None if entry.kind == "model" else before)
        if entry.after is not None and entry.after not in names:
            problems.append((f"stages.{name}.after", f'there is no stage "{entry.after}".'
                                                     f"{did_you_mean(entry.after, names)}"))
        elif entry.after is not None and entry.kind == "model":
            problems.append((f"stages.{name}.after", "a model that is given stands on nothing; leave it out"))
    told: set[str] = set()
    for name in entries:
        chain = [name]
        while (before := after.get(chain[-1])) is not None and before not in chain:
            chain.append(before)
        if before == name and name not in told:
            told |= set(chain)
            problems.append((f"stages.{name}.after", f"the stages stand in a circle: {' after '.join([*chain, name])}; "
                                                     "the one that needs no other stands first in a plan"))
    return after


def _ordered(after: Mapping[str, str | None]) -> list[str]:
    """Each stage behind the one that it stands on, otherwise as they are written."""
    ordered: list[str] = []
    while len(ordered) < len(after):
        ordered.append(next(name for name, before in after.items()
                            if name not in ordered and (before is None or before in ordered)))
    return ordered


# --- what is wrong ----------------------------------------------------------------------------------------------------


def _wrong(name: str, entry: Entry, entries: Mapping[str, Entry]) -> Problems:
    """(key, what) of everything that is wrong with one stage by itself."""
    stated, kind = entry.model_fields_set, entry.kind
    foreign = {"model": (*TEXT_ONLY, *TASK_ONLY, *BUDGETS, "changes", "seed", "interpolate", *READING),
               "text": TASK_ONLY, "task": TEXT_ONLY}[kind]
    meant = {"model": "a model that is given (`model`)", "text": "a stage that reads text",
             "task": "a stage that learns a task"}[kind]
    problems = [(key, f"has no place in {meant}; leave it out") for key in dict.fromkeys(foreign) if key in stated]
    given = [key for key in BUDGETS if key in stated and key not in foreign]
    if len(given) > 1:
        problems.append((given[1], f"{' and '.join(given)} exclude each other; give one of them"))
    if kind == "text":
        if not entry.corpus and entry.texts_of is None:
            problems.append(("corpus", "is missing: name the text to learn from, or with `texts_of` the stage whose "
                                       "examples are to be read"))
        if entry.texts_of is not None and (entry.texts_of not in entries or entries[entry.texts_of].kind != "task"):
            tasks = [other for other, found in entries.items() if found.kind == "task"]
            problems.append(("texts_of", f'there is no stage "{entry.texts_of}" that learns a task.'
                                         f"{did_you_mean(entry.texts_of, tasks)}"))
        problems += _unreadable("corpus", entry.corpus)
    if kind == "task":
        problems += [(key, "is missing: a stage that learns a task has task, train and dev")
                     for key in ("task", "train", "dev") if getattr(entry, key) is None]
        problems += [(part, f"there is no {path}") for part in ("train", "dev", "test")
                     if (path := getattr(entry, part)) is not None and not Path(path).exists()]
        try:
            kind_of(entry.task or "classify")
        except UserError as error:
            problems.append(("task", error.message))
    return problems


def _unreadable(key: str, paths: list[str]) -> Problems:
    if stream := next((path for path in paths if is_stream(path)), None):
        return [(key, f"{stream} can be read only once, and a plan may be carried out again; give a file")]
    try:
        if paths and not (len(paths) == 1 and is_corpus(paths[0])):
            list_files(paths)
    except UserError as error:
        return [(key, error.message), *((key, f"{path}: {why}") for path, why in error.problems)]
    return []


def _wrong_together(plan: PipelinePlan) -> Problems:
    """What is wrong with stages that are fine by themselves."""
    problems: Problems = []
    for name, stage in plan.stages.items():
        entry, where = stage.entry, f"stages.{name}"
        if stage.after is not None and plan.stages[stage.after].kind == "task":
            problems.append((where, f'"{stage.after}" learns a task, which ends a line of stages; name another with '
                                    "`after`"))
        if stage.after is None and stage.kind == "task":
            problems.append((where, "has nothing to start from; put a stage with `model`, or with `recipe` and "
                                    "`corpus`, above it"))
        if stage.after is None and stage.kind == "text":
            problems += [(f"{where}.recipe", "is missing: the first stage says what to build")] * (not entry.recipe)
            problems += [(f"{where}.{key}", "needs a stage before this one; leave it out")
                         for key in ("replay", "interpolate") if key in entry.model_fields_set]
        if stage.after is not None and stage.kind == "text" and not stage.budget():
            problems.append((where, f"say how long to learn: one of {', '.join(BUDGETS)}"))
        if entry.replay is not None and not plan.general()[0]:
            problems.append((f"{where}.replay", "there is no general text to mix in: name it with `general` at the top "
                                                "of the plan"))
        for key in ("replay", "texts_of"):
            if getattr(entry, key) is not None and (built := next(filter(is_corpus, entry.corpus), None)):
                problems.append((f"{where}.{key}", f"more text is mixed into raw text only, and {built} is a built "
                                                   "corpus; give the text that it was made from"))
    problems += _unreadable("general", plan.header.general)
    if plan.header.ablate and not plan.of_kind("task"):
        problems.append(("ablate", "which stage paid off is seen by a task; add a stage that learns one"))
    if "seeds" in plan.header.model_fields_set and not plan.header.ablate:
        problems.append(("seeds", "is for `ablate = true`; leave it out"))
    return problems
