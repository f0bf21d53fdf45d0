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
from stemma.lab.cells import ASIDE, FINETUNING
from stemma.lab.changes import SIZE, Group, added, atomic, differences, regroup, trainable, undone
from stemma.lab.experiment import Variant
from stemma.lineage import Change, Recipe, diff, recipe
from stemma.schema.corpus import packing_of, parse_template
from stemma.schema.layers import at, spell
from stemma.schema.recipe import RecipeSettings


class Effect(NamedTuple):
    """What a key comes to in a recipe: where that is the same on both sides, the key itself need not be."""

    keys: str  # a pattern
    comes_to: Callable[[RecipeSettings, Any], Any]  # of the whole recipe and, for a task's keys, of the task
    why: str


EFFECTS = (
    Effect("corpus.first_phase*", lambda all, _: all.corpus.first_phase if all.corpus.first_phase is not None and
           all.corpus.first_phase.sequence_length < all.corpus.sequence_length else None,
           "rows of the first phase are no shorter than the window here"),
    Effect("corpus.short_probability", lambda all, _: any(packing_of(kind).shortens for kind in all.packings().values())
           and all.corpus.short_probability, "only rows of the packing segment_pair are ever shortened"),
    Effect("corpus.pair", lambda all, _: all.templates().get("corpus.pair"), "no row of pre-training holds a pair"),
    Effect("corpus.decoder_start", lambda all, _: all.network.decoder and all.corpus.decoder_start,
           "there is no decoder"),
    Effect("network.position.maximum", lambda all, _: all.corpus.sequence_length,
           "no row of pre-training is longer than the window"),
    Effect("network.position.offset", lambda all, _: None, "it only says which rows of the table are never read"),
    Effect("network.position.counts", lambda all, _: None, "they differ only where filling stands in front of a text"),
    Effect("network.position.clamp", lambda all, _: _clamp(all), "nothing is ever so far apart"),
    Effect("network.embedding.segments", lambda all, _: min(all.network.embedding.segments, _segments(all)),
           "no row has so many segments"),
    Effect("network.embedding.tasks", lambda all, _: any(task.task_id is not None for task in all.objective.values())
           and all.network.embedding.tasks, "no task has a vector of its own"),
    Effect("network.embedding.query", lambda all, _: any(task.needs_query for task in all.objective.values()),
           "no task guesses through a second stream"),
    Effect("network.embedding.shrink", lambda all, _: all.network.embedding.cutoffs and all.network.embedding.shrink,
           "the table of tokens is in one piece"),
    Effect("network.attention.head_width", lambda all, _: all.network.attention.head_width
           or all.network.width // all.network.heads, "heads are as wide without it"),
    Effect("objective.*.ngrams", lambda _, task: "ngram" in task.unit and task.ngrams, "no n-grams are hidden"),
    Effect("objective.*.geometric", lambda _, task: task.unit == "span" and task.geometric, "no spans are hidden"),
    Effect("objective.*.longest", lambda _, task: task.unit == "span" and task.longest, "no spans are hidden"),
    Effect("objective.*.together", lambda _, task: task.unit != "token" and task.together, "every unit is one token"),
    Effect("objective.*.duplicates", lambda _, task: not task.dynamic and task.duplicates,
           "masks are drawn anew each time"),
)


def ablation(parent_name: str | None, child_name: str, size: str | None, shared: Sequence[str] = (),
             together: Sequence[Sequence[str]] = (), apart: Sequence[str] = (),
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
    out_of_sight = hidden(parent, child, recipe(_unsized(parent_name)), recipe(_unsized(child_name)),
                          [word.partition("=")[0].strip() for word in shared], own_corpus, tasks)
    reasons = dict(out_of_sight)
    groups = regroup(atomic(parent, child, list(reasons)), together, apart, reasons)
    if not groups:
        raise UserError(f"{parent.label} and {child.label} do not differ in anything that can be measured here; choose "
                        "another size, or another recipe for --against", out_of_sight)
    variants = [Variant(parent.label, trainable(parent), "parent"), Variant(child.label, trainable(child), "child")]
    impossible: list[dict[str, str]] = []
    for group in groups:
        for base, sign, role, make in ((parent, "+", "plus", added), (child, "-", "minus", undone)):
            name = f"{base.label} {sign} {group.name}"
            try:
                made = make(base, group)
            except UserError as error:
                impossible.append({"variant": name, "why": _reason(error)})
                continue
            idle = [without_effect(change, base, made) for change in group.changes]
            if all(idle):
                impossible.append({"variant": name, "why": f"it would be {base.label} again: "
                                                           f"{'; '.join(dict.fromkeys(filter(None, idle)))}"})
            else:
                variants.append(Variant(name, made, role, group.name))
    told = diff(parent, child)
    return tuple(variants), {
        "groups": [{"name": group.name, "keys": list(_keys(group, told))} for group in groups],
        "hidden": [{"key": key, "why": why} for key, why in out_of_sight], "impossible": impossible}


def hidden(parent: Recipe, child: Recipe, published_parent: Recipe, published_child: Recipe,
           shared: Sequence[str] = (), own_corpus: bool = True, tasks: bool = False) -> list[tuple[str, str]]:
    """(key, why) of every change between the recipes, as published or at this size, that cannot be seen here."""
    here = differences(parent.values, child.values)
    keys = {change.key for change in here}
    elsewhere = [change for change in differences(published_parent.values, published_child.values)
                 if change.key not in keys and change.key not in SIZE]
    found: dict[str, str] = {}
    for change in [*elsewhere, *here]:
        key = change.key
        if key == "training.steps":
            found[key] = "the lab's budget says how long"
        elif key.startswith(f"{FINETUNING}.") and not tasks:
            found[FINETUNING] = "no task is fine-tuned here, and pre-training does not read it"
        elif key == f"{FINETUNING}.epochs":
            found[key] = "the lab's --epochs says how long"
        elif key in ASIDE:
            found[key] = "says nothing about the model"
        elif key.startswith("tokenizer") and not own_corpus:
            found["tokenizer"] = "the corpus brings its tokenizer"
        elif key not in keys:
            value = at(child.values, key)
            have = "neither has it" if value is None else "both have it" if isinstance(value, Mapping) \
                else f"both have {spell(value)}"
            found[key] = have + (", as you set it" if key in shared else f" at size {child.size}" if child.size else "")
        elif why := without_effect(change, parent, child):
            found[key] = why
    return list(found.items())


def without_effect(change: Change, a: Recipe, b: Recipe) -> str | None:
    """Why the change alone makes no difference to what is learned; None: it does, for all that can be said before."""
    for effect in EFFECTS:
        if fnmatchcase(change.key, effect.keys):
            name = change.key.split(".")[1]
            made = [effect.comes_to(one.settings, one.settings.objective.get(name)) for one in (a, b)]
            return effect.why if made[0] == made[1] else None
    return None


def _segments(settings: RecipeSettings) -> int:
    """How many segments rows are made of."""
    return 1 + max(slot.segment for template in settings.templates().values() for slot in parse_template(template))


def _clamp(settings: RecipeSettings) -> int | None:
    """From which distance on all distances are one, if there are such."""
    clamp, memory = getattr(settings.network.position, "clamp", None), settings.network.memory
    farthest = settings.corpus.sequence_length + (max(memory.length, memory.evaluation or 0) if memory else 0)
    return clamp if clamp is not None and clamp < farthest else None


def _keys(group: Group, told: Sequence[Change]) -> Iterator[str]:
    """The group's changes as `stemma diff` tells them; a table that holds nothing but defaults by its name."""
    for change in group.changes:
        yield from map(_line, [one for one in told if f"{one.key}.".startswith(f"{change.key}.")] or [change])


def _line(change: Change) -> str:
    before, after = ("" if one is None or isinstance(one, Mapping) else spell(one)
                     for one in (change.before, change.after))
    if change.after is None:
        return f"- {change.key}"
    return f"+ {change.key} {after}".rstrip() if change.before is None else f"~ {change.key} {before} -> {after}"


def _reason(error: UserError) -> str:
    told = [f"{where}: {what}" if where else what for where, what in error.problems] or [error.message]
    more = [f"and {len(told) - 2} more"] if len(told) > 2 else []
    return "; ".join([*told[:2], *more])


def _unsized(name: str) -> str:
    return name if name.endswith(".toml") else name.rpartition("@")[0] or name


def _size_for(parent: str, child: Recipe) -> str | None:
    """The child's size, where the parent's name leaves it open and there is one."""
    return child.size if parent == _unsized(parent) and child.size in recipe(parent).sizes else None


def _parent_of(child: Recipe, name: str) -> str:
    if child.parent is None:
        raise UserError(f"{child.label} has no parent to be compared with; name one with --against.")
    beside = Path(_unsized(name)).parent  # a parent in a file of its own stands where the child's file says
    return str(beside / child.parent) if child.parent.endswith(".toml") else child.parent
