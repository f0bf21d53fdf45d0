"""Validates a recipe's values: reports all problems at once, each with its key and what to do."""

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
    """All dotted keys that these values may have, given their kinds."""
    for name, field in model.model_fields.items():
        inner = values.get(name)
        inner = inner if isinstance(inner, Mapping) else {}
        slot = kind_field_of(field.annotation, field.metadata)
        if slot is not None and get_origin(field.annotation) is dict:
            for task, table in inner.items():
                kind = table.get("kind", task) if isinstance(table, Mapping) else None
                entry = registry.find(slot.slot, kind) if isinstance(kind, str) else None
                if entry is not None and entry.settings is not None:
                    yield from known_keys(table, entry.settings, f"{prefix}{name}.{task}.")
            continue
        choices = settings_of_field(field)
        matching = [member for member in choices if "kind" in member.model_fields
                    and inner.get("kind") in get_args(member.model_fields["kind"].annotation)]
        if choices:
            yield from known_keys(inner, (matching or choices)[0], f"{prefix}{name}.")
        else:
            yield prefix + name


def validate(values: dict[str, object], changed: Collection[str] = (),
             fallback: Mapping[str, object] | None = None) -> tuple[RecipeSettings | None, list[Problem]]:
    """(settings, problems); settings is None if there is any problem.

    Conflicts between keys are also checked if some values are invalid: these are replaced by the previous values
    (`fallback`), so that the user gets all problems at once.
    """
    try:
        settings, problems = RecipeSettings.model_validate(values), []
    except ValidationError as error:
        problems = list(explain(error, values))
        try:
            settings = RecipeSettings.model_validate(_replace_invalid(values, error, fallback or {}))
        except ValidationError:
            return None, problems
    reported = {problem.key for problem in problems}
    flat = flatten(settings.model_dump())
    for conflict in settings.all_conflicts():
        changed_keys = [part for part in conflict if any(f"{key}.".startswith(f"{part.key}.") for key in changed)]
        part = (changed_keys or list(conflict))[0]
        if part.key not in reported:
            problems.append(Problem(part.key, flat.get(part.key, ABSENT), part.message))
    order = {key: index for index, key in enumerate(changed)}
    return (None if problems else settings), sorted(problems, key=lambda problem: order.get(problem.key, len(order)))


def explain(error: ValidationError, values: Mapping[str, object],
            model: type[Settings] = RecipeSettings) -> Iterator[Problem]:
    """pydantic's errors as our problems."""
    known = list(known_keys(values, model))
    for details in error.errors():
        path = _path(details["loc"], values)
        key, value, kind = ".".join(path), details["input"], details["type"]
        context = details.get("ctx", {})
        if kind == "extra_forbidden":
            for leaf, inner in (flatten({key: value}) or {key: ABSENT}).items():
                yield Problem(leaf, inner, _no_such_key(leaf, known, model))
        elif kind in ("union_tag_invalid", "union_tag_not_found"):
            allowed = [word.strip(" '") for word in context.get("expected_tags", "").split(",")] or []
            allowed = [word for word in allowed if word]
            given = value.get("kind", ABSENT) if isinstance(value, Mapping) else ABSENT
            yield Problem(f"{key}.kind", given, _one_of(given, allowed))
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
            yield Problem(key, value, details["msg"])


def _one_of(value: object, allowed: list[str]) -> str:
    listed = f"must be {allowed[0]}" if len(allowed) == 1 else f"must be one of {', '.join(allowed)}"
    hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
    return f"{listed}.{hint}" if hint else listed


def _no_such_key(key: str, known: list[str], model: type[Settings]) -> str:
    table = key.rpartition(".")[0]
    if owners := _kinds_with(key, model):
        return f"no such key of this kind; it goes with {table}.kind={' or '.join(owners)}"
    if hint := key_hint(key, known):
        return hint
    without_section = [k for k in known if k.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]  # "heads"
    closest = closest_match(key, known)
    best = closest if "." in key and closest else next(iter(without_section), closest)
    if best:
        return f'no such key. Did you mean "{best}"?'
    inside = [k.removeprefix(f"{table}.") for k in known if k.startswith(f"{table}.")]
    return f"no such key; {table} has {', '.join(inside)}" if inside else "no such key; `stemma show` lists them"


def _kinds_with(key: str, model: type[Settings]) -> list[str]:
    """Kinds of the key's table that have this key."""
    *tables, last = key.split(".")
    members = [model]
    for table in tables:
        members = [choice for member in members if table in member.model_fields
                   for choice in settings_of_field(member.model_fields[table])]
    return [get_args(member.model_fields["kind"].annotation)[0] for member in members
            if {"kind", last} <= member.model_fields.keys()]


def _path(location: tuple[int | str, ...], values: Mapping[str, Any]) -> list[str]:
    """Recipe key of a pydantic location, without the kind that pydantic adds for a union."""
    path, node = [], values
    for step in location:
        if isinstance(node, Mapping) and step == node.get("kind") and step not in node:
            continue
        path.append(str(step))
        node = node.get(str(step), {}) if isinstance(node, Mapping) else {}
    return path


def _replace_invalid(values: Mapping[str, object], error: ValidationError,
                     fallback: Mapping[str, object]) -> dict[str, Any]:
    repaired = copy.deepcopy(dict(values))
    for details in error.errors():
        *tables, last = _path(details["loc"], values)
        node: Any = repaired
        before: Any = fallback
        for table in tables:
            node = node.get(table, {}) if isinstance(node, Mapping) else {}
            before = before.get(table, {}) if isinstance(before, Mapping) else {}
        if details["type"] != "extra_forbidden" and isinstance(before, Mapping) and last in before:
            node[last] = copy.deepcopy(before[last])
        elif isinstance(node, dict):
            node.pop(last, None)
    return repaired
