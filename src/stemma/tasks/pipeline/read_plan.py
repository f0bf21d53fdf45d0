"""Read and check the plan of a pipeline; all problems are reported together, before training."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stemma.errors import UserError, did_you_mean
from stemma.schema.overrides import parse_changes
from stemma.tasks.datasets import task_kind_of
from stemma.tasks.pipeline.plan import (
    BUDGETS,
    READING_KEYS,
    TASK_ONLY,
    TEXT_ONLY,
    PipelinePlan,
    PipelineStage,
    PlanHeader,
    StageEntry,
)
from stemma.tasks.toml_plan import Problems, raise_problems, read_toml, validate_table
from stemma.text.readers import list_files
from stemma.training.run_folder import is_corpus, is_pipe

PLANS = Path(__file__).parents[2] / "plans"  # those that come with the program
STAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def plan_file(plan: str | Path) -> Path:
    """The file of a plan: a path, or the name of a plan that comes with the program."""
    if Path(plan).exists() or Path(plan).suffix or Path(plan).name != str(plan):
        return Path(plan)
    names = sorted(file.stem for file in PLANS.glob("*.toml"))
    if plan not in names:
        raise UserError(f'there is no plan "{plan}".{did_you_mean(str(plan), names)} Give a file, such as plan.toml, '
                        f"or a plan that comes with Stemma: {', '.join(names)}.")
    return PLANS / f"{plan}.toml"


def read_pipeline_plan(plan: str | Path, changes: Sequence[str] = ()) -> PipelinePlan:
    """Read a plan with `KEY=VALUE` changes, or raise an error with all its problems."""
    path = plan_file(plan)
    content = _with_absolute_paths(read_toml(path), path.parent)
    layer, malformed = parse_changes(changes)
    problems: Problems = [(problem.key, problem.message) for problem in malformed]
    content = _changed(content, _with_absolute_paths(layer, Path()))
    tables = content.pop("stages", {})
    header = validate_table(PlanHeader, content, "", problems)
    if not isinstance(tables, dict) or not tables:
        problems.append(("stages", "a plan has a table [stages.NAME] for each of its stages"))
        tables = {}
    entries: dict[str, StageEntry] = {}
    for name, table in tables.items():
        if not STAGE_NAME.fullmatch(name):
            problems.append((f"stages.{name}", "a stage is also a folder: use letters, digits, - and _"))
        if not isinstance(table, dict):
            problems.append((f"stages.{name}", f"must be a table: write [stages.{name}] above it"))
            continue
        if (entry := validate_table(StageEntry, table, f"stages.{name}.", problems)) is not None:
            entries[name] = entry
    complete = len(entries) == len(tables) and header is not None
    after = _resolve_parents(entries, list(tables), problems)
    for name, entry in entries.items():
        problems += [(f"stages.{name}{f'.{key}' if key else ''}", what)
                     for key, what in _stage_problems(name, entry, entries)]
    if complete and not problems:
        assert header is not None
        stages = {}
        for name in _topological_order(after):
            seed = entries[name].seed
            stages[name] = PipelineStage(name, after[name], entries[name], header.seed if seed is None else seed)
        checked = PipelinePlan(header, stages)
        problems += _plan_problems(checked)
    if problems:
        raise_problems(path, problems)
    return checked


def _with_absolute_paths(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The plan with its paths relative to `folder` made absolute."""
    content = _absolute(content, ("general",), folder)
    if isinstance(tables := content.get("stages"), dict):
        content["stages"] = {name: _absolute(table, ("corpus", "train", "dev", "test", "model"), folder)
                             if isinstance(table, dict) else table for name, table in tables.items()}
    return content


def _changed(content: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """The plan with changes. A stage that is given a `model` keeps nothing of the training that the plan has for it,
    and a stage that is given one budget keeps no other."""
    result = {**content, **layer}
    if isinstance(tables := content.get("stages"), dict) and isinstance(changed := layer.get("stages", {}), dict):
        result["stages"] = dict(tables)
        for name, table in changed.items():
            old = tables.get(name)
            if not isinstance(table, dict) or not isinstance(old, dict) or "model" in table:
                result["stages"][name] = table
                continue
            replaced = BUDGETS if set(table) & set(BUDGETS) else ()
            result["stages"][name] = {key: value for key, value in old.items() if key not in replaced} | table
    return result


def _absolute(table: Mapping[str, object], keys: tuple[str, ...], plan_folder: Path) -> dict[str, Any]:
    """Make paths absolute, relative to the plan. A model that does not exist may be a hub id and is kept."""
    def resolve(key: str, value: object) -> Any:
        if not isinstance(value, str) or value == "-" or key == "model" and not (plan_folder / value).exists():
            return value
        return str((plan_folder / value).absolute())

    return {key: ([resolve(key, item) for item in value] if isinstance(value, list) else resolve(key, value))
            if key in keys else value for key, value in table.items()}


# --- parents of stages ------------------------------------------------------------------------------------------------


def _resolve_parents(entries: Mapping[str, StageEntry], names: list[str], problems: Problems) -> dict[str, str | None]:
    """The parent of each stage; unknown parents and cycles are added to the problems."""
    after: dict[str, str | None] = {}
    for name, entry in entries.items():
        before = names[names.index(name) - 1] if names.index(name) else None
        after[name] = entry.after or (None if entry.kind == "model" else before)
        if entry.after is not None and entry.after not in names:
            problems.append((f"stages.{name}.after", f'there is no stage "{entry.after}".'
                                                     f"{did_you_mean(entry.after, names)}"))
        elif entry.after is not None and entry.kind == "model":
            problems.append((f"stages.{name}.after", "a given model starts from no other stage; leave it out"))
    reported: set[str] = set()
    for name in entries:
        chain = [name]
        while (before := after.get(chain[-1])) is not None and before not in chain:
            chain.append(before)
        if before == name and name not in reported:
            reported |= set(chain)
            problems.append((f"stages.{name}.after", "the stages start from each other in a circle: "
                                                     f"{' after '.join([*chain, name])}; "
                                                     "one of them must not have a stage before it"))
    return after


def _topological_order(after: Mapping[str, str | None]) -> list[str]:
    """Each stage after its parent, otherwise in the order of the plan."""
    ordered: list[str] = []
    while len(ordered) < len(after):
        ordered.append(next(name for name, before in after.items()
                            if name not in ordered and (before is None or before in ordered)))
    return ordered


# --- checks -----------------------------------------------------------------------------------------------------------


def _stage_problems(name: str, entry: StageEntry, entries: Mapping[str, StageEntry]) -> Problems:
    """(key, problem) of a single stage."""
    keys, kind = entry.model_fields_set, entry.kind
    foreign = {"model": (*TEXT_ONLY, *TASK_ONLY, *BUDGETS, "changes", "seed", "interpolate", *READING_KEYS),
               "text": TASK_ONLY, "task": TEXT_ONLY}[kind]
    description = {"model": "a model that is given (`model`)", "text": "a stage that reads text",
                   "task": "a stage that learns a task"}[kind]
    problems = [(key, f"does not belong in {description}; leave it out")
                for key in dict.fromkeys(foreign) if key in keys]
    budgets = [key for key in BUDGETS if key in keys and key not in foreign]
    if len(budgets) > 1:
        problems.append((budgets[1], f"{' and '.join(budgets)} exclude each other; give one of them"))
    if kind == "text":
        if not entry.corpus and entry.texts_of is None:
            problems.append(("corpus", "is missing: name the text to learn from, or with `texts_of` the stage whose "
                                       "examples are to be read"))
        if entry.texts_of is not None and (entry.texts_of not in entries or entries[entry.texts_of].kind != "task"):
            tasks = [other for other, other_entry in entries.items() if other_entry.kind == "task"]
            problems.append(("texts_of", f'there is no stage "{entry.texts_of}" that learns a task.'
                                         f"{did_you_mean(entry.texts_of, tasks)}"))
        problems += _missing_files("corpus", entry.corpus)
    if kind == "task":
        problems += [(key, "is missing: a stage that learns a task has task, train and dev")
                     for key in ("task", "train", "dev") if getattr(entry, key) is None]
        problems += [(part, f"there is no {path}") for part in ("train", "dev", "test")
                     if (path := getattr(entry, part)) is not None and not Path(path).exists()]
        try:
            if entry.task is not None:
                task_kind_of(entry.task)
        except UserError as error:
            problems.append(("task", error.message))
    return problems


def _missing_files(key: str, paths: list[str]) -> Problems:
    if stream := next((path for path in paths if is_pipe(path)), None):
        return [(key, f"{stream} can be read only once, and a plan may be carried out again; give a file")]
    try:
        if paths and not (len(paths) == 1 and is_corpus(paths[0])):
            list_files(paths)
    except UserError as error:
        return [(key, error.message), *((key, f"{path}: {why}") for path, why in error.problems)]
    return []


def _plan_problems(plan: PipelinePlan) -> Problems:
    """Problems between stages."""
    problems: Problems = []
    for name, stage in plan.stages.items():
        entry, where = stage.entry, f"stages.{name}"
        if stage.after is not None and plan.stages[stage.after].kind == "task":
            problems.append((where, f'"{stage.after}" learns a task, so no stage can start from it; name another with '
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
    problems += _missing_files("general", plan.header.general)
    if plan.header.ablate and not plan.of_kind("task"):
        problems.append(("ablate", "the gain of a stage is measured on a task; add a stage that learns one"))
    if "seeds" in plan.header.model_fields_set and not plan.header.ablate:
        problems.append(("seeds", "is for `ablate = true`; leave it out"))
    return problems
