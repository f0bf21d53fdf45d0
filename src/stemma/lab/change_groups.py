"""The changes between two recipes, grouped into the smallest ones that can be added or removed alone.

The rules, for two resolved recipes:

1. Every value that differs is a change. A table that is added or removed as a whole is one change, and so is a table
   whose `kind` changes with other keys.
2. Changes that depend on each other are one: the keys of a table whose `kind` changes, the keys of one line of
   KEY_GROUPS below or of an objective's own groups (`key_groups`), a part of the network with the objectives that need
   it (PART_USERS), and objectives that
   - replace each other: sentence objectives on the same rows, or all token-prediction objectives if none remains;
   - are added or removed together and share rows that no other objective uses;
   - are stages of one curriculum: `start_fraction` and `end_fraction` belong to the objectives that begin or end there.
3. The tokenizer is one change, and so are the fine-tuning settings.
4. A change that can neither be added to the parent alone nor removed from the child alone is merged with the fewest
   others that make it valid, at most two. A change that is valid in one direction stays alone.

The user can regroup them (`regroup`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations
from typing import Any

from stemma import registry
from stemma.errors import UserError, did_you_mean
from stemma.recipe_loading import COMMAND_LINE, Recipe, RecipeChange
from stemma.schema.objective import ObjectiveSettings
from stemma.schema.overrides import get_by_path

SIZE_KEYS = ("network.width", "network.layers", "network.heads", "network.feedforward", "network.attention.head_width",
             "network.decoder.layers")
# Keys that are one decision. The group is named by the first of them that changed.
KEY_GROUPS: tuple[tuple[str, ...], ...] = (
    SIZE_KEYS,
    ("training.optimizer", "training.optimizer.kind", "training.learning_rate"),  # each optimizer has its own scale
    ("corpus.packing", "corpus.short_probability"),  # only segment pairs are shortened
    ("corpus.sequence_length", "network.position.maximum"),  # longer rows need more positions
    ("network.embedding.segments", "network.attention.segments", "corpus.single", "corpus.pair", "corpus.boundary",
     "objective.*.single", "objective.*.pair"),  # templates: special tokens and segments
    ("network.embedding.tasks", "objective.*.task_id"),
    ("objective.*.sampling_weight",),  # relative frequencies of the objectives
)
PART_USERS = {"network.decoder": "needs_decoder", "network.generator": "needs_generator",
              "network.embedding.query": "needs_query_stream"}
WHOLE_SECTIONS = ("tokenizer", "finetuning")  # sections of a recipe that are one decision
STAGE_KEYS = (".start_fraction", ".end_fraction", ".start_step")
MAX_PARTNERS = 2  # a merge of more changes is no longer one change


@dataclass(frozen=True)
class ChangeGroup:
    """Changes that are added or removed together."""

    name: str  # unique among the groups of two recipes: a key or a table
    changes: tuple[RecipeChange, ...]

    def matches(self, key: str) -> bool:
        """Whether a key, table or group name from the command line refers to this group."""
        return key == self.name or any(_within(change.key, key) or _within(key, change.key)
                                       for change in self.changes)


def atomic_changes(parent: Recipe, child: Recipe, excluded: Sequence[str] = ()) -> list[ChangeGroup]:
    """Groups by the rules above, in the order of the recipe's sections, without the `excluded` keys."""
    changes = [change for change in recipe_changes(parent.values, child.values)
               if not any(_within(change.key, key) for key in excluded)]
    return _merge_infeasible(_build_groups(changes, _coupled_changes(changes, parent, child)), parent, child)


def recipe_changes(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[RecipeChange]:
    """All changes that turn `before` into exactly `after`, by key or by table. Unlike `recipe_loading.diff`, they
    include the defaults that come with a kind."""
    changes: list[RecipeChange] = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping) and (
                old.get("kind") == new.get("kind") or old.keys() == new.keys()):
            changes += recipe_changes(old, new, f"{prefix}{name}.")
        else:
            changes.append(RecipeChange(prefix + name, old, new))
    return changes


def apply_changes(parent: Recipe, group: ChangeGroup) -> Recipe:
    """The parent with the group's changes; raises UserError if that is invalid."""
    return check_trainable(_with_values(parent, {change.key: change.after for change in group.changes}))


def revert_changes(child: Recipe, group: ChangeGroup) -> Recipe:
    """The child without the group's changes; raises UserError if that is invalid."""
    return check_trainable(_with_values(child, {change.key: change.before for change in group.changes}))


def check_trainable(recipe: Recipe) -> Recipe:
    """Return the recipe if it passes the checks before a run's first step that need no text."""
    from stemma.objectives import build_objectives, head_specs

    tasks = recipe.settings.objective.values()
    if not tasks:
        raise UserError(f"no task of {recipe.label} is left to train")
    if all(task.start_step > 0 or task.start_fraction > 0 for task in tasks):
        raise UserError(f"no task of {recipe.label} starts at the first step")
    head_specs(build_objectives(recipe))
    return recipe


def regroup(groups: Sequence[ChangeGroup], merge: Sequence[Sequence[str]], split: Sequence[str],
            excluded: Mapping[str, str] | None = None) -> list[ChangeGroup]:
    """The user's grouping: first `split` changes from their groups, then `merge` groups. Each entry is the name of a
    group, a key, or a table; `excluded` maps keys that are in no group to the reason."""
    result, problems = list(groups), []
    excluded = excluded or {}

    def matching_groups(name: str) -> list[ChangeGroup]:
        matches = [group for group in result if group.matches(name)]
        if not matches:
            reasons = [reason for key, reason in excluded.items() if _within(key, name) or _within(name, key)]
            names = [*(group.name for group in groups), *(change.key for group in groups for change in group.changes)]
            problems.append((name, f"is in no group: {reasons[0]}" if reasons else
                             f"is no change between the two.{did_you_mean(name, names)}"))
        return matches

    for name in split:
        for group in matching_groups(name):
            matches = [change for change in group.changes if _within(change.key, name)]
            if len(matches) == len(group.changes) or name == group.name and not matches:
                parts = [[change] for change in group.changes]
            elif matches:
                parts = [matches, [change for change in group.changes if change not in matches]]
            else:
                problems.append((name, f"cannot be separated from the rest of {group.name}, which was added, removed "
                                       "or changed its kind as a whole"))
                continue
            if len(group.changes) > 1:
                _replace_groups(result, [group], [_group(part) for part in parts])
    for names in merge:
        members = list({group.name: group for name in names for group in matching_groups(name)}.values())
        if len(names) < 2:
            problems.append((", ".join(names), "is only one: give --group two changes or more, separated by commas"))
        elif len(members) > 1:
            _replace_groups(result, members, [_merge_groups(members)])
    if problems:
        raise UserError("the changes cannot be grouped like this", problems)
    return result


# --- one recipe with some values of another --------------------------------------------------------------------------


def _with_values(base: Recipe, pairs: Mapping[str, object]) -> Recipe:
    """The recipe with these values; None removes a key. They have the origin of the command line, so `key=value` pairs
    repeat the run."""
    values = dict(pairs)
    for key in [key for key in pairs if key.endswith(".kind")]:  # a kind alone would drop the table's other keys
        table = key.removesuffix(".kind")
        inside = {name: values.pop(name) for name in pairs if _within(name, table)}
        values[table] = {**get_by_path(base.values, table),
                         **{name.rpartition(".")[2]: inside[name] for name in inside}}
    replaced = [key for key, value in values.items()
                if (value is None or isinstance(value, Mapping)) and get_by_path(base.values, key) is not None]
    new = {key: value for key, value in values.items() if value is not None}
    return base.with_changes({"remove": replaced, **new}, COMMAND_LINE)


def _feasible_directions(group: ChangeGroup, parent: Recipe, child: Recipe) -> int:
    """In how many directions (added to the parent, removed from the child) the changes are valid."""
    def is_valid(make: Callable[[Recipe, ChangeGroup], Recipe], base: Recipe) -> bool:
        try:
            make(base, group)
        except UserError:
            return False
        return True

    return is_valid(apply_changes, parent) + is_valid(revert_changes, child)


def _merge_infeasible(groups: list[ChangeGroup], parent: Recipe, child: Recipe) -> list[ChangeGroup]:
    """Rule 4. Of equally many partners, those valid in both directions are preferred, then the first."""
    result = list(groups)
    for group in [group for group in groups if not _feasible_directions(group, parent, child)]:
        others = [other for other in result if other is not group]
        for count in range(1, MAX_PARTNERS + 1):
            if group not in result:  # it has been merged already
                break
            candidates = [(group, *partners) for partners in combinations(others, count)]
            directions = [_feasible_directions(_merge_groups(candidate), parent, child) for candidate in candidates]
            if any(directions):
                best = candidates[directions.index(max(directions))]
                _replace_groups(result, best, [_merge_groups(best)])
    return result


# --- coupled changes -------------------------------------------------------------------------------------------------


def _coupled_changes(changes: Sequence[RecipeChange], parent: Recipe, child: Recipe) -> Iterator[list[RecipeChange]]:
    """Rules 2 and 3: lists of changes that are one change; they may overlap."""
    def matching(*patterns: str) -> list[RecipeChange]:
        return [change for change in changes if any(fnmatchcase(change.key, pattern) for pattern in patterns)]

    for section in WHOLE_SECTIONS:
        yield matching(f"{section}.*")
    for change in changes:
        if change.key.endswith(".kind"):
            yield matching(change.key.removesuffix("kind") + "*")
    for keys in KEY_GROUPS:
        yield matching(*keys)
    for group in dict.fromkeys([*parent.settings.key_groups(), *child.settings.key_groups()]):
        yield matching(*group)
    for part, needs_part in PART_USERS.items():
        yield matching(part, *(f"objective.{name}" for recipe in (parent, child)
                               for name, task in recipe.settings.objective.items() if getattr(task, needs_part)))
    for names in _coupled_objectives(parent, child, {change.key for change in changes}):
        yield matching(*(f"objective.{name}{end}" for name in names for end in ("", *STAGE_KEYS)))


def _coupled_objectives(parent: Recipe, child: Recipe, keys: set[str]) -> Iterator[list[str]]:
    """Names of objectives that are added, removed, started and stopped together, as one change."""
    before, after = parent.settings.objective, child.settings.objective
    removed, added = [name for name in before if name not in after], [name for name in after if name not in before]
    common = [name for name in after if name in before]
    objectives = {**before, **after}

    def row_key(name: str) -> tuple[Any, ...]:
        """Objectives with equal values here share their rows."""
        task = objectives[name]
        return task.packing, task.attention_mask_kind, task.single, task.pair, task.task_id

    def predicting(tasks: Mapping[str, ObjectiveSettings]) -> set[str]:
        return {name for name, task in tasks.items() if registry.get("objective", task.kind).build.predicts_tokens}

    for old in removed:
        yield [old, *(new for new in added if objectives[old].rearranges_text and objectives[new].rearranges_text
                      and row_key(new) == row_key(old))]
    if predicting(before) and predicting(before) <= set(removed) and predicting(after) <= set(added):
        yield [*predicting(before), *predicting(after)]
    common_row_keys = {row_key(name) for name in common}
    for names in (removed, added) if common else ():
        for name in names:
            if row_key(name) not in common_row_keys:
                yield [other for other in names if row_key(other) == row_key(name)]
    for name in common:
        if {f"objective.{name}{end}" for end in STAGE_KEYS} & keys:
            yield [name, *(other for other in (*removed, *added)
                           if row_key(other) == row_key(name) and _is_staged(objectives[other]))]


def _is_staged(task: ObjectiveSettings) -> bool:
    return task.start_fraction > 0 or task.start_step > 0 or task.end_fraction < 1


# --- groups and their names ------------------------------------------------------------------------------------------


def _build_groups(changes: Sequence[RecipeChange], coupled: Iterator[list[RecipeChange]]) -> list[ChangeGroup]:
    """Each change in exactly one group; overlapping lists are merged."""
    group_keys = {change.key: [change.key] for change in changes}
    for members in coupled:
        keys = {key: None for change in members for key in group_keys[change.key]}
        for key in keys:
            group_keys[key] = list(keys)
    parts = dict.fromkeys(tuple(sorted(keys)) for keys in group_keys.values())
    return [_group([change for change in changes if change.key in part]) for part in parts]


def _group(changes: Sequence[RecipeChange]) -> ChangeGroup:
    """A group, named by its only change, an objective that is added or removed, a table whose kind changed, or the
    first key of its KEY_GROUPS line."""
    keys = [change.key for change in changes]
    tasks = [change for change in changes if change.key.startswith("objective.") and change.key.count(".") == 1]
    tables = [key.removesuffix(".kind") for key in keys if key.endswith(".kind")]
    ordered = [key for group_keys in KEY_GROUPS for pattern in group_keys for key in keys if fnmatchcase(key, pattern)]
    if len(keys) == 1:
        name = keys[0]
    elif tasks:
        name = max(tasks, key=lambda change: change.after is not None).key
    elif sections := [section for section in WHOLE_SECTIONS if all(_within(key, section) for key in keys)]:
        name = sections[0]
    elif tables:
        name = tables[0]
    else:
        name = [*ordered, *keys][0]
    return ChangeGroup(name, tuple(changes))


def _merge_groups(groups: Sequence[ChangeGroup]) -> ChangeGroup:
    """One group, named by both or by the first and a count; objectives come first, because the others serve them."""
    names = sorted((group.name for group in groups), key=lambda name: not name.startswith("objective."))
    name = " & ".join(names) if len(names) == 2 else f"{names[0]} & {len(names) - 1} more"
    return ChangeGroup(name, tuple(change for group in groups for change in group.changes))


def _replace_groups(groups: list[ChangeGroup], old: Sequence[ChangeGroup], new: Sequence[ChangeGroup]) -> None:
    """Replace the old groups, at the index of the first of them."""
    first = min(groups.index(group) for group in old)
    groups[first:first + 1] = new
    groups[:] = [group for group in groups if group not in old]


def _within(key: str, table: str) -> bool:
    return key == table or key.startswith(f"{table}.")
