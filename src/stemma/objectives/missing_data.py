"""Remove the objectives that a corpus has no data for from a recipe.

In a curriculum of consecutive stages (ERNIE, arXiv:1904.09223), the stage before takes over the budget of a removed
one. A masked LM that only accompanies a removed objective (they share a task id) is removed with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stemma.recipe_loading import Recipe
from stemma.schema.objective import ObjectiveSettings

ORIGIN = "corpus"  # origin of these changes in the recipe of the run


def drop_objectives(recipe: Recipe, missing: Mapping[str, str]) -> tuple[Recipe, list[str]]:
    """The recipe without the objectives in `missing` (name to reason), and a warning for each."""
    objectives = recipe.settings.objective
    companions = {name: list(_paired_masked_lms(objectives, name, missing)) for name in missing}
    removed = dict.fromkeys(removed_name for name in missing for removed_name in (name, *companions[name]))
    remaining = {name: settings for name, settings in objectives.items() if name not in removed}
    changes: dict[str, Any] = {}
    warnings = {}
    for name in (name for name in objectives if name in missing):
        also_removed = "".join(f", and objective.{companion} with it" for companion in companions[name])
        warnings[name] = f"objective.{name} is switched off{also_removed}: {missing[name]}."
    ordered = sorted(missing, key=lambda name: objectives[name].start_fraction)
    extended = {name: _take_over_stage(remaining, objectives[name], ("end_fraction", "start_fraction"), changes)
                for name in ordered}
    for name in reversed([name for name in ordered if not extended[name]]):  # first stages: the stage after takes over
        extended[name] = _take_over_stage(remaining, objectives[name], ("start_fraction", "end_fraction"), changes)
    for name, names in extended.items():
        warnings[name] += "".join(f" objective.{extended_name} takes over its stage of the budget."
                                  for extended_name in names)
    changes["remove"] = [f"objective.{name}" for name in removed]
    return recipe.with_changes(changes, ORIGIN), list(warnings.values())


def _paired_masked_lms(objectives: Mapping[str, ObjectiveSettings], removed: str,
                       missing: Mapping[str, str]) -> Iterator[str]:
    """Masked-LM objectives that share the task id of a removed objective and have no other objective left there."""
    task_id = objectives[removed].task_id
    same_task = {name: settings for name, settings in objectives.items()
                 if task_id is not None and settings.task_id == task_id}
    accompanied = {name for name, settings in same_task.items() if not settings.masks_tokens}
    if removed in accompanied and accompanied <= set(missing):
        yield from (name for name in same_task if name not in accompanied and name not in missing)


def _take_over_stage(remaining: Mapping[str, ObjectiveSettings], removed: ObjectiveSettings, edges: tuple[str, str],
                     changes: dict[str, object]) -> list[str]:
    """Extend objectives of the same kind, packing and task id over the stage of a removed one: those whose near edge
    ("end_fraction") meets its far edge ("start_fraction"). Adds the new edges to `changes`; returns the names of these
    objectives."""
    near, far = edges
    similar = [name for name, settings in remaining.items()
               if (settings.kind, settings.packing, settings.task_id)
               == (removed.kind, removed.packing, removed.task_id)]
    extended = [name for name in similar
                if changes.get(f"objective.{name}.{near}", getattr(remaining[name], near)) == getattr(removed, far)]
    changes |= {f"objective.{name}.{near}": getattr(removed, near) for name in extended}
    return extended
