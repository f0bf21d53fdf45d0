"""Which change was it? Parent, child, the parent with each change, and the child without it.

Two recipes differ by more than can be measured in one place: a size sets some keys for both, the lab sets others, and
some say nothing about what is learned here. Those changes are hidden: they make no variant, and are listed with the
reason. So are variants that cannot be, or would only repeat the recipe that they are made from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from stemma.errors import UserError
from stemma.lab.cells import FINETUNING, NON_MODEL_KEYS
from stemma.lab.change_groups import (
    SIZE_KEYS,
    ChangeGroup,
    apply_changes,
    atomic_changes,
    check_trainable,
    recipe_changes,
    regroup,
    revert_changes,
)
from stemma.lab.experiment import Variant
from stemma.recipe_loading import Recipe, RecipeChange, diff, recipe
from stemma.schema.corpus import packing_settings, parse_template
from stemma.schema.overrides import format_value, get_by_path
from stemma.schema.recipe import RecipeSettings


class NoEffectRule(NamedTuple):
    """What a key comes to in a recipe: where that is the same on both sides, the key itself need not be."""

    keys: str  # a pattern
    effective_value: Callable[[RecipeSettings, Any], Any]  # of the whole recipe and, for a task's keys, of the task
    reason: str


NO_EFFECT_RULES = (
    NoEffectRule("corpus.first_phase*", lambda all, _: all.corpus.first_phase if all.corpus.first_phase is not None and
           all.corpus.first_phase.sequence_length < all.corpus.sequence_length else None,
           "rows of the first phase are no shorter than the window here"),
    NoEffectRule("corpus.short_probability", lambda all,
                 _: any(packing_settings(kind).shortens for kind in all.packings().values())
           and all.corpus.short_probability, "only rows of the packing segment_pair are ever shortened"),
    NoEffectRule("corpus.pair", lambda all, _: all.templates().get("corpus.pair"),
                 "no row of pre-training holds a pair"),
    NoEffectRule("corpus.decoder_start", lambda all, _: all.network.decoder and all.corpus.decoder_start,
           "there is no decoder"),
    NoEffectRule("network.position.maximum", lambda all, _: all.corpus.sequence_length,
           "no row of pre-training is longer than the window"),
    NoEffectRule("network.position.offset", lambda all, _: None, "it only says which rows of the table are never read"),
    NoEffectRule("network.position.counts", lambda all, _: None,
                 "they differ only where filling stands in front of a text"),
    NoEffectRule("network.position.clamp", lambda all, _: _max_distance(all), "nothing is ever so far apart"),
    NoEffectRule("network.embedding.segments", lambda all, _: min(all.network.embedding.segments, _num_segments(all)),
           "no row has so many segments"),
    NoEffectRule("network.embedding.tasks", lambda all,
                 _: any(task.task_id is not None for task in all.objective.values())
           and all.network.embedding.tasks, "no task has a vector of its own"),
    NoEffectRule("network.embedding.query", lambda all,
                 _: any(task.needs_query_stream for task in all.objective.values()),
           "no task guesses through a second stream"),
    NoEffectRule("network.embedding.shrink", lambda all, _: all.network.embedding.cutoffs
                 and all.network.embedding.shrink,
           "the table of tokens is in one piece"),
    NoEffectRule("network.attention.head_width", lambda all, _: all.network.attention.head_width
           or all.network.width // all.network.heads, "heads are as wide without it"),
    NoEffectRule("objective.*.ngrams", lambda _, task: "ngram" in task.unit and task.ngrams, "no n-grams are hidden"),
    NoEffectRule("objective.*.geometric", lambda _, task: task.unit == "span" and task.geometric,
                 "no spans are hidden"),
    NoEffectRule("objective.*.longest", lambda _, task: task.unit == "span" and task.longest, "no spans are hidden"),
    NoEffectRule("objective.*.together", lambda _, task: task.unit != "token" and task.together,
                 "every unit is one token"),
    NoEffectRule("objective.*.duplicates", lambda _, task: not task.dynamic and task.duplicates,
           "masks are drawn anew each time"),
)


def ablation_variants(parent_name: str | None, child_name: str, size: str | None, shared: Sequence[str] = (),
             merge: Sequence[Sequence[str]] = (), split: Sequence[str] = (),
             own_corpus: bool = True, tasks: bool = False) -> tuple[tuple[Variant, ...], dict[str, Any]]:
    """The variants, and what was left out: `groups` (name, keys), `hidden` (key, why), `impossible` (variant, why).

    Without a parent's name it is the one that the child names; without a size of its own it has the child's, if that
    is one of its sizes. `shared` are `key=value` changes of both. Where each
    recipe reads its own corpus (`own_corpus`), the tokenizer is a change like others; where models are fine-tuned
    (`tasks`), so is how that is done.
    """
    child = recipe(child_name, shared, size)
    parent_name = parent_name or _parent_of(child, child_name)
    parent = recipe(parent_name, shared, size or _size_for(parent_name, child))
    out_of_sight = excluded_changes(parent, child, recipe(_without_size(parent_name)),
                                    recipe(_without_size(child_name)),
                          [word.partition("=")[0].strip() for word in shared], own_corpus, tasks)
    reasons = dict(out_of_sight)
    groups = regroup(atomic_changes(parent, child, list(reasons)), merge, split, reasons)
    if not groups:
        raise UserError(f"{parent.label} and {child.label} do not differ in anything that can be measured here; choose "
                        "another size, or another recipe for --against", out_of_sight)
    variants = [Variant(parent.label, check_trainable(parent), "parent"),
                Variant(child.label, check_trainable(child), "child")]
    impossible: list[dict[str, str]] = []
    for group in groups:
        for base, sign, role, make in ((parent, "+", "plus", apply_changes), (child, "-", "minus", revert_changes)):
            name = f"{base.label} {sign} {group.name}"
            try:
                made = make(base, group)
            except UserError as error:
                impossible.append({"variant": name, "why": _reason(error)})
                continue
            idle = [no_effect_reason(change, base, made) for change in group.changes]
            if all(idle):
                impossible.append({"variant": name, "why": f"it would be {base.label} again: "
                                                           f"{'; '.join(dict.fromkeys(filter(None, idle)))}"})
            else:
                variants.append(Variant(name, made, role, group.name))
    told = diff(parent, child)
    return tuple(variants), {
        "groups": [{"name": group.name, "keys": list(_keys(group, told))} for group in groups],
        "hidden": [{"key": key, "why": why} for key, why in out_of_sight], "impossible": impossible}


def excluded_changes(parent: Recipe, child: Recipe, published_parent: Recipe, published_child: Recipe,
           shared: Sequence[str] = (), own_corpus: bool = True, tasks: bool = False) -> list[tuple[str, str]]:
    """(key, why) of every change between the recipes, as published or at this size, that cannot be seen here."""
    here = recipe_changes(parent.values, child.values)
    keys = {change.key for change in here}
    elsewhere = [change for change in recipe_changes(published_parent.values, published_child.values)
                 if change.key not in keys and change.key not in SIZE_KEYS]
    found: dict[str, str] = {}
    for change in [*elsewhere, *here]:
        key = change.key
        if key == "training.steps":
            found[key] = "the lab's budget says how long"
        elif key.startswith(f"{FINETUNING}.") and not tasks:
            found[FINETUNING] = "no task is fine-tuned here, and pre-training does not read it"
        elif key == f"{FINETUNING}.epochs":
            found[key] = "the lab's --epochs says how long"
        elif key in NON_MODEL_KEYS:
            found[key] = "says nothing about the model"
        elif key.startswith("tokenizer") and not own_corpus:
            found["tokenizer"] = "the corpus brings its tokenizer"
        elif key not in keys:
            value = get_by_path(child.values, key)
            have = "neither has it" if value is None else "both have it" if isinstance(value, Mapping) \
                else f"both have {format_value(value)}"
            found[key] = have + (", as you set it" if key in shared else f" at size {child.size}" if child.size else "")
        elif why := no_effect_reason(change, parent, child):
            found[key] = why
    return list(found.items())


def no_effect_reason(change: RecipeChange, a: Recipe, b: Recipe) -> str | None:
    """Why the change alone makes no difference to what is learned; None: it does, for all that can be said before."""
    for effect in NO_EFFECT_RULES:
        if fnmatchcase(change.key, effect.keys):
            name = change.key.split(".")[1]
            made = [effect.effective_value(one.settings, one.settings.objective.get(name)) for one in (a, b)]
            return effect.reason if made[0] == made[1] else None
    return None


def _num_segments(settings: RecipeSettings) -> int:
    """How many segments rows are made of."""
    return 1 + max(slot.segment for template in settings.templates().values() for slot in parse_template(template))


def _max_distance(settings: RecipeSettings) -> int | None:
    """From which distance on all distances are one, if there are such."""
    clamp, memory = getattr(settings.network.position, "clamp", None), settings.network.memory
    farthest = settings.corpus.sequence_length + (max(memory.length, memory.evaluation or 0) if memory else 0)
    return clamp if clamp is not None and clamp < farthest else None


def _keys(group: ChangeGroup, diff_keys: Sequence[RecipeChange]) -> Iterator[str]:
    """The group's changes as `stemma diff` tells them; a table that holds nothing but defaults by its name."""
    for change in group.changes:
        yield from map(_format_change, [one for one in diff_keys if f"{one.key}.".startswith(f"{change.key}.")]
                       or [change])


def _format_change(change: RecipeChange) -> str:
    before, after = ("" if one is None or isinstance(one, Mapping) else format_value(one)
                     for one in (change.before, change.after))
    if change.after is None:
        return f"- {change.key}"
    return f"+ {change.key} {after}".rstrip() if change.before is None else f"~ {change.key} {before} -> {after}"


def _reason(error: UserError) -> str:
    told = [f"{where}: {what}" if where else what for where, what in error.problems] or [error.message]
    more = [f"and {len(told) - 2} more"] if len(told) > 2 else []
    return "; ".join([*told[:2], *more])


def _without_size(name: str) -> str:
    return name if name.endswith(".toml") else name.rpartition("@")[0] or name


def _size_for(parent: str, child: Recipe) -> str | None:
    """The child's size, where the parent's name leaves it open and there is one."""
    return child.size if parent == _without_size(parent) and child.size in recipe(parent).sizes else None


def _parent_of(child: Recipe, name: str) -> str:
    if child.parent is None:
        raise UserError(f"{child.label} has no parent to be compared with; name one with --against.")
    beside = Path(_without_size(name)).parent  # a parent in a file of its own stands where the child's file says
    return str(beside / child.parent) if child.parent.endswith(".toml") else child.parent
