"""One layer of values on top of another: how a child recipe, a size or a command line changes what was there."""

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
    key: str
    value: Any  # ABSENT where there is none to show
    message: str

    @property
    def location(self) -> str:
        return self.key if self.value is ABSENT or isinstance(self.value,
                                                              dict) else f"{self.key} = {format_value(self.value)}"


def format_value(value: object) -> str:
    """A value as it would be typed behind `key=`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"[{', '.join(map(format_value, value))}]" if isinstance(value, list) else str(value)


def flatten(values: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def nest(pairs: Mapping[str, object]) -> dict[str, Any]:
    """Dotted keys as nested tables."""
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
    """`key=value` pairs as one layer: the unnamed child recipe of a command line."""
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
    """A TOML value; a bare word is text, and .5 a number as everywhere else."""
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
    """The values with `remove` taken away and `layer` laid on top, who set them now, and what could not be done."""
    result, result_origins = copy.deepcopy(dict(values)), dict(origins)
    problems = _remove(result, result_origins, remove)
    tasks = result.setdefault("objective", {})
    layer, more = _with_objective_kinds(layer, tasks)
    _apply_layer(result, layer, result_origins, origin)
    _drop_unread_keys(result, layer, result_origins)
    if isinstance(tasks := result["objective"], dict):  # text is moved before tokens are hidden, whoever came first
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
            known = {".".join(key.split(".")[:depth]) for key in flatten(values)}
            problems.append(Problem("remove", path, f"there is nothing of this name.{did_you_mean(path, known)}"))
    return problems


def _apply_layer(values: dict[str, Any], layer: Mapping[str, Any], origins: dict[str, str], origin: str,
         prefix: str = "") -> None:
    """Tables merge, lists replace, and a new `kind` drops what its table held for the old one."""
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
    """A new body drops what the network held for the old one; what the layer itself states stays, to be refused."""
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
    """A new objective is of the kind of its name, unless it says another; a name that is neither is a slip."""
    stated = layer.get("objective")
    if not isinstance(stated, Mapping):
        return layer, []
    kept: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, task in stated.items():
        if name in present or not isinstance(task, Mapping) or "kind" in task:
            kept[name] = task
        elif registry.find("objective", name) is not None:
            kept[name] = {"kind": name, **task}
        else:
            known = [*present, *registry.kinds("objective")]
            message = f'no objective "{name}", nor a kind of it.{did_you_mean(name, known)}'
            leaves = flatten({f"objective.{name}": task}) or {f"objective.{name}": ABSENT}
            problems += [Problem(key, value, message) for key, value in leaves.items()]
    return {**layer, "objective": kept}, problems


def _rearranges(task: object) -> bool:
    found = registry.find("objective", str(task.get("kind"))) if isinstance(task, Mapping) else None
    return found is not None and found.settings is not None and found.settings.rearranges_text


def find_restated(before: Mapping[str, Any], layer: Mapping[str, Any], prefix: str = "") -> list[Problem]:
    """What a child says although its parent says it already: noise in a file that should hold only what is new."""
    if "kind" in layer and layer["kind"] != before.get("kind"):
        return []
    found: list[Problem] = []
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(before.get(key), Mapping):
            found += find_restated(before[key], value, f"{prefix}{key}.")
        elif key in before and before[key] == value:
            found.append(Problem(prefix + key, value, "restates the parent's value; leave it out"))
    return found
