"""The changes between two recipes, as the smallest ones that make sense: each can be made to the one, or taken back
in the other, and so be measured by itself.

The rule, from two resolved recipes:

1. Every value that differs is a change. A table that came or went as a whole is one change, and so is a table whose
   `kind` is another one with other keys.
2. Changes that mean nothing without each other are one: the keys of a table whose `kind` changed, the keys of a line of
   FAMILIES below or of a task's own groups (`one_decision`), a part of the network with the tasks that cannot do
   without it (PARTS), and tasks that
   - replace each other: sentence tasks of the same rows, or all tasks that guess tokens where none of them stayed;
   - came or went together and share rows that no other task reads;
   - are stages of one curriculum: `starts` and `stops` go with the tasks whose time begins or ends there.
3. The tokenizer is one thing, and so is how a recipe is fine-tuned.
4. What can neither be made to the parent alone nor taken back in the child alone joins the fewest others with which it
   can, up to two. What is possible one way only stays alone.

Whoever disagrees says so (`regroup`).
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
# Keys that are one decision. The first one that changed gives the group its name.
KEY_GROUPS: tuple[tuple[str, ...], ...] = (
    SIZE_KEYS,
    ("training.optimizer", "training.optimizer.kind", "training.learning_rate"),  # each optimizer has its own scale
    ("corpus.packing", "corpus.short_probability"),  # only segment pairs are ever made shorter
    ("corpus.sequence_length", "network.position.maximum"),  # a longer window needs more places
    ("network.embedding.segments", "network.attention.segments", "corpus.single", "corpus.pair", "corpus.boundary",
     "objective.*.single", "objective.*.pair"),  # what stands around a text, and which part of it a token belongs to
    ("network.embedding.tasks", "objective.*.task_id"),
    ("objective.*.turns",),  # shares of one whole
)
PART_USERS = {"network.decoder": "needs_decoder", "network.generator": "needs_generator",
         "network.embedding.query": "needs_query_stream"}
WHOLE_SECTIONS = ("tokenizer", "finetuning")  # sections of a recipe that are one decision
STAGE_KEYS = (".starts", ".stops", ".start_step")
MAX_PARTNERS = 2  # more would be a change that nobody calls one


@dataclass(frozen=True)
class ChangeGroup:
    """Changes that are made, or taken back, together."""

    name: str  # unique among the groups of a pair of recipes: a key, or a table
    changes: tuple[RecipeChange, ...]

    def matches(self, word: str) -> bool:
        """Whether a word of the user's means it, or something in it."""
        return word == self.name or any(_within(change.key, word) or _within(word, change.key)
                                        for change in self.changes)


def atomic_changes(parent: Recipe, child: Recipe, excluded: Sequence[str] = ()) -> list[ChangeGroup]:
    """By the rule above, in the order of the recipes' sections; `without` are keys of changes to leave alone."""
    changes = [change for change in recipe_changes(parent.values, child.values)
               if not any(_within(change.key, key) for key in excluded)]
    return _merge_infeasible(_build_groups(changes, _coupled_changes(changes, parent, child)), parent, child)


def recipe_changes(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[RecipeChange]:
    """What to set, key by key or table by table, so that the one becomes exactly the other. Unlike `lineage.diff`,
    which leaves out the defaults that come with a kind."""
    found: list[RecipeChange] = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping) and (
                old.get("kind") == new.get("kind") or old.keys() == new.keys()):
            found += recipe_changes(old, new, f"{prefix}{name}.")
        else:
            found.append(RecipeChange(prefix + name, old, new))
    return found


def apply_changes(parent: Recipe, group: ChangeGroup) -> Recipe:
    """The parent with the group's changes; UserError says why that cannot be."""
    return check_trainable(_with_values(parent, {change.key: change.after for change in group.changes}))


def revert_changes(child: Recipe, group: ChangeGroup) -> Recipe:
    """The child without the group's changes; UserError says why that cannot be."""
    return check_trainable(_with_values(child, {change.key: change.before for change in group.changes}))


def check_trainable(recipe: Recipe) -> Recipe:
    """The recipe, if it passes what a run checks before its first step, as far as that needs no text."""
    from stemma.objectives import build_objectives, head_specs

    tasks = recipe.settings.objective.values()
    if not tasks:
        raise UserError(f"no task of {recipe.label} is left to train")
    if all(task.start_step > 0 or task.starts > 0 for task in tasks):
        raise UserError(f"no task of {recipe.label} starts at the first step")
    head_specs(build_objectives(recipe))
    return recipe


def regroup(groups: Sequence[ChangeGroup], merge: Sequence[Sequence[str]], split: Sequence[str],
            excluded: Mapping[str, str] | None = None) -> list[ChangeGroup]:
    """The user's own grouping: first these changes `apart` from their groups, then those groups `together`. A word is
    the name of a group, a key, or a table that holds keys; `hidden` says why some changes are in no group."""
    result, problems = list(groups), []
    excluded = excluded or {}

    def owners(word: str) -> list[ChangeGroup]:
        found = [group for group in result if group.matches(word)]
        if not found:
            why = [reason for key, reason in excluded.items() if _within(key, word) or _within(word, key)]
            known = [*(group.name for group in groups), *(change.key for group in groups for change in group.changes)]
            problems.append((word, f"is in no group: {why[0]}" if why else
                             f"is no change between the two.{did_you_mean(word, known)}"))
        return found

    for word in split:
        for group in owners(word):
            taken = [change for change in group.changes if _within(change.key, word)]
            if len(taken) == len(group.changes) or word == group.name and not taken:
                parts = [[change] for change in group.changes]
            elif taken:
                parts = [taken, [change for change in group.changes if change not in taken]]
            else:
                problems.append((word, f"cannot be told from the rest of {group.name}, which came, went or changed "
                                       "its kind as a whole"))
                continue
            if len(group.changes) > 1:
                _replace_groups(result, [group], [_group(part) for part in parts])
    for words in merge:
        members = list({group.name: group for word in words for group in owners(word)}.values())
        if len(words) < 2:
            problems.append((", ".join(words), "stands alone: give --group two changes or more, with commas between"))
        elif len(members) > 1:
            _replace_groups(result, members, [_merge_groups(members)])
    if problems:
        raise UserError("the changes cannot be grouped like this", problems)
    return result


# --- one recipe with some values of another --------------------------------------------------------------------------


def _with_values(base: Recipe, pairs: Mapping[str, object]) -> Recipe:
    """With these values; None takes away. They count as typed: the run can be had again with `key=value` pairs."""
    wanted = dict(pairs)
    for key in [key for key in pairs if key.endswith(".kind")]:  # laid alone, a kind would drop its table's other keys
        table = key.removesuffix(".kind")
        inside = {name: wanted.pop(name) for name in pairs if _within(name, table)}
        wanted[table] = {**get_by_path(base.values, table),
                         **{name.rpartition(".")[2]: inside[name] for name in inside}}
    replaced = [key for key, value in wanted.items()
                if (value is None or isinstance(value, Mapping)) and get_by_path(base.values, key) is not None]
    stated = {key: value for key, value in wanted.items() if value is not None}
    return base.with_changes({"remove": replaced, **stated}, COMMAND_LINE)


def _feasible_directions(group: ChangeGroup, parent: Recipe, child: Recipe) -> int:
    """In how many of the two ways the changes can be made."""
    def possible(make: Callable[[Recipe, ChangeGroup], Recipe], base: Recipe) -> bool:
        try:
            make(base, group)
        except UserError:
            return False
        return True

    return possible(apply_changes, parent) + possible(revert_changes, child)


def _merge_infeasible(groups: list[ChangeGroup], parent: Recipe, child: Recipe) -> list[ChangeGroup]:
    """Part 4 of the rule. Of equally many partners those are chosen that leave both ways open, then the first."""
    result = list(groups)
    for group in [group for group in groups if not _feasible_directions(group, parent, child)]:
        others = [other for other in result if other is not group]
        for count in range(1, MAX_PARTNERS + 1):
            if group not in result:  # it has been somebody's partner
                break
            sets = [(group, *some) for some in combinations(others, count)]
            ways = [_feasible_directions(_merge_groups(some), parent, child) for some in sets]
            if any(ways):
                best = sets[ways.index(max(ways))]
                _replace_groups(result, best, [_merge_groups(best)])
    return result


# --- what belongs together -------------------------------------------------------------------------------------------


def _coupled_changes(changes: Sequence[RecipeChange], parent: Recipe, child: Recipe) -> Iterator[list[RecipeChange]]:
    """Parts 2 and 3 of the rule: lists of changes that are one; they may overlap."""
    def matching(*patterns: str) -> list[RecipeChange]:
        return [change for change in changes if any(fnmatchcase(change.key, pattern) for pattern in patterns)]

    for section in WHOLE_SECTIONS:
        yield matching(f"{section}.*")
    for change in changes:
        if change.key.endswith(".kind"):
            yield matching(change.key.removesuffix("kind") + "*")
    for family in KEY_GROUPS:
        yield matching(*family)
    for group in dict.fromkeys([*parent.settings.key_groups(), *child.settings.key_groups()]):
        yield matching(*group)
    for part, needs_it in PART_USERS.items():
        yield matching(part, *(f"objective.{name}" for one in (parent, child)
                               for name, task in one.settings.objective.items() if getattr(task, needs_it)))
    for names in _coupled_objectives(parent, child, {change.key for change in changes}):
        yield matching(*(f"objective.{name}{end}" for name in names for end in ("", *STAGE_KEYS)))


def _coupled_objectives(parent: Recipe, child: Recipe, keys: set[str]) -> Iterator[list[str]]:
    """Names of tasks whose coming, going, starting and stopping is one change."""
    before, after = parent.settings.objective, child.settings.objective
    gone, come = [name for name in before if name not in after], [name for name in after if name not in before]
    stayed = [name for name in after if name in before]
    everything = {**before, **after}

    def rows(name: str) -> tuple[Any, ...]:
        """What tasks share whose rows are the same."""
        task = everything[name]
        return task.packing, task.attention_mask_kind, task.single, task.pair, task.task_id

    def guessing(tasks: Mapping[str, ObjectiveSettings]) -> set[str]:
        return {name for name, task in tasks.items() if registry.get("objective", task.kind).build.predicts_tokens}

    for old in gone:
        yield [old, *(new for new in come if everything[old].rearranges_text and everything[new].rearranges_text
                      and rows(new) == rows(old))]
    if guessing(before) and guessing(before) <= set(gone) and guessing(after) <= set(come):
        yield [*guessing(before), *guessing(after)]
    taken = {rows(name) for name in stayed}
    for names in (gone, come) if stayed else ():
        for name in names:
            if rows(name) not in taken:
                yield [other for other in names if rows(other) == rows(name)]
    for name in stayed:
        if {f"objective.{name}{end}" for end in STAGE_KEYS} & keys:
            yield [name, *(other for other in (*gone, *come)
                           if rows(other) == rows(name) and _is_staged(everything[other]))]


def _is_staged(task: ObjectiveSettings) -> bool:
    return task.starts > 0 or task.start_step > 0 or task.stops < 1


# --- groups and their names ------------------------------------------------------------------------------------------


def _build_groups(changes: Sequence[RecipeChange], coupled: Iterator[list[RecipeChange]]) -> list[ChangeGroup]:
    """Every change in one group; lists that overlap are one."""
    of = {change.key: [change.key] for change in changes}
    for members in coupled:
        keys = {key: None for change in members for key in of[change.key]}
        for key in keys:
            of[key] = list(keys)
    parts = dict.fromkeys(tuple(sorted(keys)) for keys in of.values())
    return [_group([change for change in changes if change.key in part]) for part in parts]


def _group(changes: Sequence[RecipeChange]) -> ChangeGroup:
    """Named by its only change, or by a task that came or went, a table of another kind, or the lead of a family."""
    keys = [change.key for change in changes]
    tasks = [change for change in changes if change.key.startswith("objective.") and change.key.count(".") == 1]
    tables = [key.removesuffix(".kind") for key in keys if key.endswith(".kind")]
    leads = [key for family in KEY_GROUPS for pattern in family for key in keys if fnmatchcase(key, pattern)]
    if len(keys) == 1:
        name = keys[0]
    elif tasks:
        name = max(tasks, key=lambda change: change.after is not None).key
    elif sections := [section for section in WHOLE_SECTIONS if all(_within(key, section) for key in keys)]:
        name = sections[0]
    elif tables:
        name = tables[0]
    else:
        name = [*leads, *keys][0]
    return ChangeGroup(name, tuple(changes))


def _merge_groups(groups: Sequence[ChangeGroup]) -> ChangeGroup:
    """Named by both, or by one and how many more; tasks first, for they are what the others are there for."""
    names = sorted((group.name for group in groups), key=lambda name: not name.startswith("objective."))
    name = " & ".join(names) if len(names) == 2 else f"{names[0]} & {len(names) - 1} more"
    return ChangeGroup(name, tuple(change for group in groups for change in group.changes))


def _replace_groups(groups: list[ChangeGroup], old: Sequence[ChangeGroup], new: Sequence[ChangeGroup]) -> None:
    """In the place of the first of the old ones."""
    first = min(groups.index(group) for group in old)
    groups[first:first + 1] = new
    groups[:] = [group for group in groups if group not in old]


def _within(key: str, table: str) -> bool:
    return key == table or key.startswith(f"{table}.")
