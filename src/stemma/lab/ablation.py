"""The variants of an ablation: parent, child, the parent with each change, and the child without each change.

Not every difference between two recipes can be measured: the size overrides some keys, the lab's budget others, and
some have no effect on this training. Such changes are excluded: they get no variant and are listed with the reason.
Variants that are invalid, or identical to the recipe they are made from, are listed in the same way.
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
from stemma.lab.common_changes import with_common_changes
from stemma.lab.experiment import Variant
from stemma.recipe_loading import Recipe, RecipeChange, diff, recipe
from stemma.schema.corpus import packing_settings, parse_template
from stemma.schema.overrides import format_value, get_by_path
from stemma.schema.recipe import RecipeSettings


class NoEffectRule(NamedTuple):
    """When a key has no effect: if its effective value is equal in both recipes, a different key does not matter."""

    keys: str  # a pattern
    effective_value: Callable[[RecipeSettings, Any], Any]  # of the whole recipe and, for an objective's keys, of it
    reason: str


NO_EFFECT_RULES = (
    NoEffectRule("tokenizer.vocab_size",
                 lambda settings, _: None if settings.tokenizer.fit_to_text else settings.tokenizer.vocab_size,
                 "at this size the vocabulary follows from the amount of text"),
    NoEffectRule("corpus.first_phase*",
                 lambda settings, _: settings.corpus.first_phase if settings.corpus.first_phase is not None and
                 settings.corpus.first_phase.sequence_length < settings.corpus.sequence_length else None,
                 "rows of the first phase are not shorter than the others here"),
    NoEffectRule("corpus.short_probability",
                 lambda settings, _: any(packing_settings(kind).shortens for kind in settings.packings().values())
                 and settings.corpus.short_probability, "only the packing segment_pair shortens rows"),
    NoEffectRule("corpus.pair", lambda settings, _: settings.templates().get("corpus.pair"),
                 "no row of pre-training has a text pair"),
    NoEffectRule("corpus.decoder_start", lambda settings, _: settings.network.decoder and settings.corpus.decoder_start,
                 "there is no decoder"),
    NoEffectRule("network.position.maximum", lambda settings, _: settings.corpus.sequence_length,
                 "no row of pre-training is longer than the sequence length"),
    NoEffectRule("network.position.offset", lambda settings, _: None,
                 "it only decides which rows of the position embedding are unused"),
    NoEffectRule("network.position.numbering", lambda settings, _: None, "they differ only with padding on the left"),
    NoEffectRule("network.position.clamp", lambda settings, _: _max_distance(settings),
                 "no two positions are that far apart"),
    NoEffectRule("network.embedding.segments",
                 lambda settings, _: min(settings.network.embedding.segments, _num_segments(settings)),
                 "no row has that many segments"),
    NoEffectRule("network.embedding.tasks",
                 lambda settings, _: any(task.task_id is not None for task in settings.objective.values())
                 and settings.network.embedding.tasks, "no objective has a task embedding"),
    NoEffectRule("network.embedding.query",
                 lambda settings, _: any(task.needs_query_stream for task in settings.objective.values()),
                 "no objective uses a query stream"),
    NoEffectRule("network.embedding.div_val",
                 lambda settings, _: settings.network.embedding.cutoffs and settings.network.embedding.div_val,
                 "the embedding is not adaptive"),
    NoEffectRule("network.attention.head_width",
                 lambda settings, _: settings.network.attention.head_width
                 or settings.network.width // settings.network.heads,
                 "heads have the same width without it"),
    NoEffectRule("objective.*.ngrams", lambda _, task: "ngram" in task.unit and task.ngrams, "no n-grams are masked"),
    NoEffectRule("objective.*.geometric_p", lambda _, task: task.unit == "span" and task.geometric_p,
                 "no spans are masked"),
    NoEffectRule("objective.*.max_span_words", lambda _, task: task.unit == "span" and task.max_span_words,
                 "no spans are masked"),
    NoEffectRule("objective.*.replace_whole_units", lambda _, task: task.unit != "token" and task.replace_whole_units,
                 "every unit is one token"),
    NoEffectRule("objective.*.duplicates", lambda _, task: not task.dynamic and task.duplicates,
                 "masking is dynamic"),
)


def ablation_variants(parent_name: str | None, child_name: str, size: str | None, shared: Sequence[str] = (),
                      merge: Sequence[Sequence[str]] = (), split: Sequence[str] = (), own_corpus: bool = True,
                      tasks: bool = False) -> tuple[tuple[Variant, ...], dict[str, Any]]:
    """The variants, and details: `groups` (name, keys), excluded changes `hidden` (key, why), `impossible` (variant,
    why), `notes`.

    The parent is the child's own by default. Without a size the parent has the child's, if it has that size. `shared`
    are `key=value` changes of both. If each recipe has its own corpus (`own_corpus`), the tokenizer is one of the
    changes; if models are fine-tuned (`tasks`), so are the fine-tuning settings.
    """
    child = recipe(child_name, size=size)
    parent_name = parent_name or _parent_of(child, child_name)
    (parent, child), notes = with_common_changes(
        [recipe(parent_name, size=size or _size_for(parent_name, child)), child], shared)
    excluded = excluded_changes(parent, child, recipe(_without_size(parent_name)), recipe(_without_size(child_name)),
                                [change.partition("=")[0].strip() for change in shared], own_corpus, tasks)
    reasons = dict(excluded)
    groups = regroup(atomic_changes(parent, child, list(reasons)), merge, split, reasons)
    if not groups:
        raise UserError(f"{parent.label} and {child.label} do not differ in anything that can be measured here; choose "
                        "another size, or another recipe for --against", excluded)
    variants = [Variant(parent.label, check_trainable(parent), "parent"),
                Variant(child.label, check_trainable(child), "child")]
    impossible: list[dict[str, str]] = []
    for group in groups:
        for base, sign, role, make in ((parent, "+", "plus", apply_changes), (child, "-", "minus", revert_changes)):
            name = f"{base.label} {sign} {group.name}"
            try:
                variant = make(base, group)
            except UserError as error:
                impossible.append({"variant": name, "why": _reason(error)})
                continue
            no_effect = [no_effect_reason(change, base, variant) for change in group.changes]
            if all(no_effect):
                reason = "; ".join(dict.fromkeys(filter(None, no_effect)))
                impossible.append({"variant": name, "why": f"it would be {base.label} again: {reason}"})
            else:
                variants.append(Variant(name, variant, role, group.name))
    differences = diff(parent, child)
    return tuple(variants), {
        "groups": [{"name": group.name, "keys": list(_keys(group, differences))} for group in groups],
        "hidden": [{"key": key, "why": why} for key, why in excluded], "impossible": impossible,
        **({"notes": notes} if notes else {})}


def excluded_changes(parent: Recipe, child: Recipe, published_parent: Recipe, published_child: Recipe,
                     shared: Sequence[str] = (), own_corpus: bool = True,
                     tasks: bool = False) -> list[tuple[str, str]]:
    """(key, reason) of every change between the recipes, as published or at this size, that cannot be measured here."""
    at_size = recipe_changes(parent.values, child.values)
    keys = {change.key for change in at_size}
    as_published = [change for change in recipe_changes(published_parent.values, published_child.values)
                    if change.key not in keys and change.key not in SIZE_KEYS]
    reasons: dict[str, str] = {}
    for change in [*as_published, *at_size]:
        key = change.key
        if key == "training.steps":
            reasons[key] = "the lab's budget decides"
        elif key.startswith(f"{FINETUNING}.") and not tasks:
            reasons[FINETUNING] = "no task is fine-tuned here, and pre-training does not use it"
        elif key == f"{FINETUNING}.epochs":
            reasons[key] = "the lab's --epochs decides"
        elif key in NON_MODEL_KEYS:
            reasons[key] = "has no effect on the model"
        elif key.startswith("tokenizer") and not own_corpus:
            reasons["tokenizer"] = "the corpus has its own tokenizer"
        elif key not in keys:
            value = get_by_path(child.values, key)
            have = "neither has it" if value is None else "both have it" if isinstance(value, Mapping) \
                else f"both have {format_value(value)}"
            reasons[key] = have + (", as you set it" if key in shared
                                   else f" at size {child.size}" if child.size else "")
        elif reason := no_effect_reason(change, parent, child):
            reasons[key] = reason
    return list(reasons.items())


def no_effect_reason(change: RecipeChange, a: Recipe, b: Recipe) -> str | None:
    """Why the change alone has no effect on training; None if it may have one."""
    for rule in NO_EFFECT_RULES:
        if fnmatchcase(change.key, rule.keys):
            name = change.key.split(".")[1]
            value_a, value_b = (rule.effective_value(recipe.settings, recipe.settings.objective.get(name))
                                for recipe in (a, b))
            return rule.reason if value_a == value_b else None
    return None


def _num_segments(settings: RecipeSettings) -> int:
    """The number of segments in the recipe's templates."""
    return 1 + max(slot.segment for template in settings.templates().values() for slot in parse_template(template))


def _max_distance(settings: RecipeSettings) -> int | None:
    """The clamp on relative distances, if it is below the largest distance that occurs."""
    clamp, memory = getattr(settings.network.position, "clamp", None), settings.network.memory
    farthest = settings.corpus.sequence_length + (max(memory.length, memory.eval_length or 0) if memory else 0)
    return clamp if clamp is not None and clamp < farthest else None


def _keys(group: ChangeGroup, differences: Sequence[RecipeChange]) -> Iterator[str]:
    """The group's changes as `stemma diff` prints them; a table with only defaults is listed by its name."""
    for change in group.changes:
        within = [difference for difference in differences if f"{difference.key}.".startswith(f"{change.key}.")]
        yield from map(_format_change, within or [change])


def _format_change(change: RecipeChange) -> str:
    before, after = ("" if value is None or isinstance(value, Mapping) else format_value(value)
                     for value in (change.before, change.after))
    if change.after is None:
        return f"- {change.key}"
    return f"+ {change.key} {after}".rstrip() if change.before is None else f"~ {change.key} {before} -> {after}"


def _reason(error: UserError) -> str:
    problems = [f"{location}: {problem}" if location else problem for location, problem in error.problems]
    problems = problems or [error.message]
    more = [f"and {len(problems) - 2} more"] if len(problems) > 2 else []
    return "; ".join([*problems[:2], *more])


def _without_size(name: str) -> str:
    return name if name.endswith(".toml") else name.rpartition("@")[0] or name


def _size_for(parent: str, child: Recipe) -> str | None:
    """The child's size, if the parent's name states none and the parent has that size."""
    return child.size if parent == _without_size(parent) and child.size in recipe(parent).sizes else None


def _parent_of(child: Recipe, name: str) -> str:
    if child.parent is None:
        raise UserError(f"{child.label} has no parent to be compared with; name one with --against.")
    folder = Path(_without_size(name)).parent  # a parent in a file is relative to the child's file
    return str(folder / child.parent) if child.parent.endswith(".toml") else child.parent
