"""Checking a recipe's values before any tensor exists: every problem at once, each with its key and the way out."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from stemma import registry
from stemma.errors import closest_match, did_you_mean
from stemma.schema.aliases import key_hint
from stemma.schema.base import Settings, kind_field_of
from stemma.schema.overrides import ABSENT, Problem, flatten
from stemma.schema.recipe import RecipeSettings
from stemma.schema.size_keys import settings_of_field

_TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false", "string": "text", "list": "a list",
          "dict": "a table", "model": "a table", "model_attributes": "a table"}


def known_keys(values: Mapping[str, object], model: type[Settings] = RecipeSettings, prefix: str = "") -> Iterator[str]:
    """Every dotted key these values could have, given the kinds they chose."""
    for name, field in model.model_fields.items():
        inner = values.get(name)
        inner = inner if isinstance(inner, Mapping) else {}
        slot = kind_field_of(field.annotation, field.metadata)
        if slot is not None and get_origin(field.annotation) is dict:
            for task, table in inner.items():
                kind = table.get("kind", task) if isinstance(table, Mapping) else None
                found = registry.find(slot.slot, kind) if isinstance(kind, str) else None
                if found is not None and found.settings is not None:
                    yield from known_keys(table, found.settings, f"{prefix}{name}.{task}.")
            continue
        choices = settings_of_field(field)
        chosen = [member for member in choices if "kind" in member.model_fields
                  and inner.get("kind") in get_args(member.model_fields["kind"].annotation)]
        if choices:
            yield from known_keys(inner, (chosen or choices)[0], f"{prefix}{name}.")
        else:
            yield prefix + name


def validate(values: dict[str, object], changed: Collection[str] = (),
             fallback: Mapping[str, object] | None = None) -> tuple[RecipeSettings | None, list[Problem]]:
    """The settings, or all that is wrong with them.

    Conflicts between keys are looked for even where some values are wrong by themselves: those are replaced by what
    stood there before (`fallback`), so that the user does not meet the second error only after mending the first.
    """
    try:
        settings, problems = RecipeSettings.model_validate(values), []
    except ValidationError as error:
        problems = list(explain(error, values))
        try:
            settings = RecipeSettings.model_validate(_replace_invalid(values, error, fallback or {}))
        except ValidationError:
            return None, problems
    told = {problem.key for problem in problems}
    flat = flatten(settings.model_dump())
    for conflict in settings.all_conflicts():
        touched = [blame for blame in conflict if any(f"{key}.".startswith(f"{blame.key}.") for key in changed)]
        blame = (touched or list(conflict))[0]
        if blame.key not in told:
            problems.append(Problem(blame.key, flat.get(blame.key, ABSENT), blame.message))
    order = {key: number for number, key in enumerate(changed)}
    return (None if problems else settings), sorted(problems, key=lambda problem: order.get(problem.key, len(order)))


def explain(error: ValidationError, values: Mapping[str, object],
            model: type[Settings] = RecipeSettings) -> Iterator[Problem]:
    """pydantic's findings in our words."""
    known = list(known_keys(values, model))
    for found in error.errors():
        path = _path(found["loc"], values)
        key, value, kind = ".".join(path), found["input"], found["type"]
        context = found.get("ctx", {})
        if kind == "extra_forbidden":
            for leaf, inner in (flatten({key: value}) or {key: ABSENT}).items():
                yield Problem(leaf, inner, _no_such_key(leaf, known, model))
        elif kind in ("union_tag_invalid", "union_tag_not_found"):
            allowed = [word.strip(" '") for word in context.get("expected_tags", "").split(",")] or []
            allowed = [word for word in allowed if word]
            chosen = value.get("kind", ABSENT) if isinstance(value, Mapping) else ABSENT
            yield Problem(f"{key}.kind", chosen, _one_of(chosen, allowed))
        elif kind == "literal_error":
            yield Problem(key, value, _one_of(value, [word.strip(" '") for word in
                                                      context["expected"].replace(" or ", ",").split(",")]))
        elif kind == "missing":
            yield Problem(key, ABSENT, "is missing")
        elif kind == "value_error":
            yield Problem(key, value, str(context["error"]))
        elif kind == "finite_number":
            yield Problem(key, value, "must be a finite number")
        elif kind.removesuffix("_type").removesuffix("_from_float") in _TYPES:
            yield Problem(key, value, f"must be {_TYPES[kind.removesuffix('_type').removesuffix('_from_float')]}")
        else:
            yield Problem(key, value, found["msg"])


def _one_of(value: object, allowed: list[str]) -> str:
    listed = f"must be {allowed[0]}" if len(allowed) == 1 else f"must be one of {', '.join(allowed)}"
    return listed + (f".{did_you_mean(value, allowed)}" if isinstance(value, str) and closest_match(value,
                                                                                                    allowed) else "")


def _no_such_key(key: str, known: list[str], model: type[Settings]) -> str:
    table = key.rpartition(".")[0]
    if owners := _kinds_with(key, model):
        return f"no such key of this kind; it goes with {table}.kind={' or '.join(owners)}"
    if elsewhere := key_hint(key, known):
        return elsewhere
    without_section = [k for k in known if k.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]  # "heads"
    closest = closest_match(key, known)
    best = closest if "." in key and closest else next(iter(without_section), closest)
    if best:
        return f'no such key. Did you mean "{best}"?'
    inside = [k.removeprefix(f"{table}.") for k in known if k.startswith(f"{table}.")]
    return f"no such key; {table} has {', '.join(inside)}" if inside else "no such key; `stemma show` lists them"


def _kinds_with(key: str, model: type[Settings]) -> list[str]:
    """The kinds of its table that have such a key."""
    *tables, last = key.split(".")
    members = [model]
    for table in tables:
        members = [choice for member in members if table in member.model_fields
                   for choice in settings_of_field(member.model_fields[table])]
    return [get_args(member.model_fields["kind"].annotation)[0] for member in members
            if {"kind", last} <= member.model_fields.keys()]


def _path(location: tuple[int | str, ...], values: Mapping[str, Any]) -> list[str]:
    """pydantic names the kind it chose on its way into a union; a recipe's keys do not."""
    path, node = [], values
    for step in location:
        if isinstance(node, Mapping) and step == node.get("kind") and step not in node:
            continue
        path.append(str(step))
        node = node.get(str(step), {}) if isinstance(node, Mapping) else {}
    return path


def _replace_invalid(values: Mapping[str, object], error: ValidationError, fallback: Mapping[str, object]) -> dict[str,
                                                                                                                   Any]:
    mended = copy.deepcopy(dict(values))
    for found in error.errors():
        *tables, last = _path(found["loc"], values)
        node: Any = mended
        before: Any = fallback
        for table in tables:
            node = node.get(table, {}) if isinstance(node, Mapping) else {}
            before = before.get(table, {}) if isinstance(before, Mapping) else {}
        if found["type"] != "extra_forbidden" and isinstance(before, Mapping) and last in before:
            node[last] = copy.deepcopy(before[last])
        elif isinstance(node, dict):
            node.pop(last, None)
    return mended
