"""The one reader of JSON: whatever is wrong with a file is a sentence that names it and says what to do.

`parse` is `json.loads` that only ever raises ValueError; those who read a user's lines call it and tell the line.
`read_object` and `read_lines` read files of ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stemma.errors import CorruptFileError, UserError

KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}


def parse(text: str | bytes) -> Any:
    """What a JSON text says; ValueError, also where it is nested more deeply than can be read."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_object(text: str | bytes) -> dict[str, Any]:
    found = parse(text)
    if not isinstance(found, dict):
        raise ValueError(f"an object is expected, and it holds {KINDS.get(type(found), 'null')}")
    return found


def read_object(path: Path, advice: str) -> dict[str, Any]:
    """The object in a file; `advice` says what to do where there is none."""
    with explain_damage(path, advice):
        return parse_object(path.read_bytes())


def read_lines(path: Path, advice: str) -> list[dict[str, Any]]:
    """The objects of a file with one a line. Only LF ends a line: other line ends of Unicode occur inside sentences."""
    found = []
    with explain_damage(path, advice):
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            try:
                found += [parse_object(line)] if line else []
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
    return found


@contextmanager
def explain_damage(path: Path, advice: str) -> Iterator[None]:
    """Around everything that takes a file's content for granted: what is missing or of another kind is its damage."""
    try:
        yield
    except UserError:
        raise
    except KeyError as error:
        raise CorruptFileError(f"{path} is damaged (it lacks {error}); {advice}") from error
    except OSError as error:
        raise CorruptFileError(f"{path} cannot be read ({error.strerror or error}); {advice}") from error
    except (ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise CorruptFileError(f"{path} is damaged ({error}); {advice}") from error
