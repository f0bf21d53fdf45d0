"""A recipe without the tasks that a corpus has nothing for: they are taken out by name, and nobody's time is lost.

Pure data. In a curriculum whose stages follow one another (ERNIE, arXiv:1904.09223) the stage before takes over the
time of one that is gone. A masked language model that only goes along with another task (they share a task vector)
goes with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stemma.recipe_loading import Recipe
from stemma.schema.objective import ObjectiveSettings

ORIGIN = "corpus"  # who made these changes, as a run's recipe tells it


def drop_objectives(recipe: Recipe, missing: Mapping[str, str]) -> tuple[Recipe, list[str]]:
    """The recipe without the tasks that lack something (by name, with what it is), and what to tell of each."""
    tasks = recipe.settings.objective
    gone = {name: [name, *_paired_masked_lms(tasks, name, missing)] for name in missing}
    removed = dict.fromkeys(each for names in gone.values() for each in names)
    left = {name: task for name, task in tasks.items() if name not in removed}
    changes: dict[str, Any] = {}
    told = {}
    for name in (name for name in tasks if name in missing):
        companions = "".join(f", and objective.{each} with it" for each in gone[name][1:])
        told[name] = f"objective.{name} is switched off{companions}: {missing[name]}."
    ordered = sorted(missing, key=lambda name: tasks[name].starts)
    inherited = {name: _take_over_stage(left, tasks[name], ("stops", "starts"), changes) for name in ordered}
    for name in reversed([name for name in ordered if not inherited[name]]):  # the first stages have nobody before them
        inherited[name] = _take_over_stage(left, tasks[name], ("starts", "stops"), changes)
    for name, heirs in inherited.items():
        told[name] += "".join(f" objective.{heir} takes over its stage of the budget." for heir in heirs)
    changes["remove"] = [f"objective.{name}" for name in removed]
    return recipe.with_changes(changes, ORIGIN), list(told.values())


def _paired_masked_lms(objectives: Mapping[str, ObjectiveSettings], removed: str,
                       missing: Mapping[str, str]) -> Iterator[str]:
    """Masked language models of the task vector of a task that is none, if nobody else of that vector is left."""
    vector = objectives[removed].task_id
    mates = {name: task for name, task in objectives.items() if vector is not None and task.task_id == vector}
    others = {name for name, task in mates.items() if not task.masks_tokens}
    if removed in others and others <= set(missing):
        yield from (name for name in mates if name not in others and name not in missing)


def _take_over_stage(remaining: Mapping[str, ObjectiveSettings], removed: ObjectiveSettings, edges: tuple[str, str],
             changes: dict[str, object]) -> list[str]:
    """Let tasks alike take over a stage: those whose one edge ("stops") meets the other edge ("starts") of the one that
    is gone. Notes it in `changes`, and returns who they are."""
    near, far = edges
    alike = [name for name, task in remaining.items()
             if (task.kind, task.packing, task.task_id) == (removed.kind, removed.packing, removed.task_id)]
    heirs = [name for name in alike
             if changes.get(f"objective.{name}.{near}", getattr(remaining[name], near)) == getattr(removed, far)]
    changes |= {f"objective.{name}.{near}": getattr(removed, near) for name in heirs}
    return heirs
