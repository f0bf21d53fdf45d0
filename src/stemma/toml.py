"""Writes the subset of TOML that recipes use, in a readable layout; finds the line of a key."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(values: Mapping[str, object]) -> str:
    """Nested plain values as TOML: scalars first, aligned, then one table after the other."""
    return "\n".join(_table(values, ())) + "\n"


def _table(values: Mapping[str, object], path: tuple[str, ...]) -> list[str]:
    scalars = {_key(key): value for key, value in values.items() if not isinstance(value, Mapping)}
    width = max(map(len, scalars), default=0)
    lines = [f"{key:<{width}} = {_value(value)}" for key, value in scalars.items()]
    if path and (lines or not values):
        lines = ["", f"[{'.'.join(map(_key, path))}]", *lines]
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines += _table(value, (*path, key))
    return lines


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value).replace("e-0", "e-")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    # JSON and TOML have the same escapes, except for DEL.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def line_of(text: str, key: str) -> int | None:
    """Line number of a dotted key, or else of its nearest enclosing table."""
    table, enclosing = "", None
    for line_number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+([^\]]+)\]", line):
            table = header[1].replace(" ", "").replace('"', "")
            if key == table or key.startswith(f"{table}."):
                enclosing = line_number
        elif match := re.match(r"""\s*([A-Za-z0-9_.\-"' ]+?)\s*=""", line):
            name = ".".join(filter(None, (table, re.sub(r"""[ "']""", "", match[1]))))
            if name == key:
                return line_number
            if key.startswith(f"{name}."):
                enclosing = line_number
    return enclosing
