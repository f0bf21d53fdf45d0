"""Merges layers of values: a child recipe, a size or command-line changes on top of the previous values."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stemma import registry
from stemma.errors import did_you_mean
from stemma.schema.network import unread_keys

ABSENT: Any = object()


class Problem(NamedTuple):
    """A problem with one key of a recipe."""

    key: str
    value: Any  # ABSENT if there is none to show
    message: str

    @property
    def location(self) -> str:
        has_value = self.value is not ABSENT and not isinstance(self.value, dict)
        return f"{self.key} = {format_value(self.value)}" if has_value else self.key


def format_value(value: object) -> str:
    """A value as in `key=value` on the command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"[{', '.join(map(format_value, value))}]" if isinstance(value, list) else str(value)


def flatten(values: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
    """Nested tables -> dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def nest(pairs: Mapping[str, object]) -> dict[str, Any]:
    """Dotted keys -> nested tables."""
    nested: dict[str, Any] = {}
    for key, value in pairs.items():
        *tables, last = key.split(".")
        node = nested
        for table in tables:
            if not isinstance(node.get(table), dict):
                node[table] = {}
            node = node[table]
        inner = nest(value) if isinstance(value, Mapping) else value
        if isinstance(inner, dict) and isinstance(node.get(last), dict):
            node[last].update(inner)
        else:
            node[last] = inner
    return nested


def get_by_path(values: Mapping[str, object], key: str) -> Any:
    node: Any = values
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def parse_changes(changes: Sequence[str] | Mapping[str, object]) -> tuple[dict[str, Any], list[Problem]]:
    """`key=value` changes of a command line as one layer."""
    if isinstance(changes, Mapping):
        return nest(changes), []
    pairs: dict[str, Any] = {}
    problems = []
    for change in changes:
        key, sign, text = change.partition("=")
        key, text = key.strip(), text.strip()
        if not sign or not text or not all(key.split(".")):
            problems.append(Problem(change, ABSENT, "is not of the form key=value"))
        elif key == "remove":
            more = _value(text)
            pairs["remove"] = [*pairs.get("remove", []), *(more if isinstance(more, list) else [more])]
        else:
            pairs[key] = _value(text)
    return nest(pairs), problems


def _value(text: str) -> Any:
    """A TOML value; a bare word is text, and .5 is a number."""
    try:
        parsed = tomllib.loads(f"value = {text}")
        return parsed["value"] if len(parsed) == 1 else text
    except (tomllib.TOMLDecodeError, RecursionError):
        pass
    if text.startswith("[") and text.endswith("]"):
        return [_value(part.strip()) for part in text[1:-1].split(",") if part.strip()]
    try:
        return float(text)
    except ValueError:
        return text


def merge_layer(values: Mapping[str, Any], origins: Mapping[str, str], layer: Mapping[str, Any], remove: Sequence[str],
                origin: str) -> tuple[dict[str, Any], dict[str, str], list[Problem]]:
    """(values, origins, problems) after removing the keys in `remove` and merging `layer`."""
    result, result_origins = copy.deepcopy(dict(values)), dict(origins)
    problems = _remove(result, result_origins, remove)
    tasks = result.setdefault("objective", {})
    layer, more = _with_objective_kinds(layer, tasks)
    _apply_layer(result, layer, result_origins, origin)
    _drop_unread_keys(result, layer, result_origins)
    if isinstance(tasks := result["objective"], dict):  # objectives that rearrange text run before those that mask
        result["objective"] = dict(sorted(tasks.items(), key=lambda item: not _rearranges(item[1])))
    return result, result_origins, problems + more


def _remove(values: dict[str, object], origins: dict[str, str], paths: Sequence[str]) -> list[Problem]:
    problems = []
    for path in map(str, paths):
        table, _, last = path.rpartition(".")
        owner = get_by_path(values, table) if table else values
        if isinstance(owner, dict) and last in owner:
            del owner[last]
            _forget_origins(origins, path)
        else:
            depth = path.count(".") + 1
            paths_there = {".".join(key.split(".")[:depth]) for key in flatten(values)}
            hint = did_you_mean(path, paths_there)
            problems.append(Problem("remove", path, f"there is nothing of this name.{hint}"))
    return problems


def _apply_layer(values: dict[str, Any], layer: Mapping[str, Any], origins: dict[str, str], origin: str,
                 prefix: str = "") -> None:
    """Merge tables, replace lists; a new `kind` drops the keys of the old kind."""
    if prefix and "kind" in layer and layer["kind"] != values.get("kind"):
        values.clear()
        _forget_origins(origins, prefix.removesuffix("."))
    for key, value in layer.items():
        if isinstance(value, Mapping):
            if not isinstance(values.get(key), dict):
                values[key] = {}
            _apply_layer(values[key], value, origins, origin, f"{prefix}{key}.")
        else:
            values[key] = copy.deepcopy(value)
            origins[prefix + key] = origin


def _drop_unread_keys(values: dict[str, object], layer: Mapping[str, object], origins: dict[str, str]) -> None:
    """A new body drops the network's keys for the old one; keys of the layer itself stay, and are then refused."""
    network, stated = values.get("network"), layer.get("network")
    if isinstance(network, dict) and isinstance(stated, Mapping):
        for key in [key for key in unread_keys(network) if key in network and key not in stated]:
            del network[key]
            _forget_origins(origins, f"network.{key}")


def _forget_origins(origins: dict[str, str], path: str) -> None:
    for key in [key for key in origins if key == path or key.startswith(f"{path}.")]:
        del origins[key]


def _with_objective_kinds(layer: Mapping[str, object],
                          present: Mapping[str, object]) -> tuple[Mapping[str, Any], list[Problem]]:
    """The default kind of a new objective is its name; an unknown name without a kind is a problem."""
    stated = layer.get("objective")
    if not isinstance(stated, Mapping):
        return layer, []
    objectives: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, task in stated.items():
        if name in present or not isinstance(task, Mapping) or "kind" in task:
            objectives[name] = task
        elif registry.find("objective", name) is not None:
            objectives[name] = {"kind": name, **task}
        else:
            known = [*present, *registry.kinds("objective")]
            message = f'no objective "{name}", nor a kind of it.{did_you_mean(name, known)}'
            leaves = flatten({f"objective.{name}": task}) or {f"objective.{name}": ABSENT}
            problems += [Problem(key, value, message) for key, value in leaves.items()]
    return {**layer, "objective": objectives}, problems


def _rearranges(task: object) -> bool:
    entry = registry.find("objective", str(task.get("kind"))) if isinstance(task, Mapping) else None
    return entry is not None and entry.settings is not None and entry.settings.rearranges_text


def find_restated(before: Mapping[str, Any], layer: Mapping[str, Any], prefix: str = "") -> list[Problem]:
    """Values that a child recipe repeats from its parent: a recipe file should have only changes."""
    if "kind" in layer and layer["kind"] != before.get("kind"):
        return []
    problems: list[Problem] = []
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(before.get(key), Mapping):
            problems += find_restated(before[key], value, f"{prefix}{key}.")
        elif key in before and before[key] == value:
            problems.append(Problem(prefix + key, value, "restates the parent's value; leave it out"))
    return problems
