"""Reads JSON; every problem with a file becomes an error that names the file and says what to do.

`parse` is `json.loads` that raises only ValueError, for lines of a user's file. `read_object` and `read_lines` read
files that Stemma wrote.
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
    """Parse a JSON text; raises ValueError, also if it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_object(text: str | bytes) -> dict[str, Any]:
    value = parse(text)
    if not isinstance(value, dict):
        raise ValueError(f"an object is expected, and it holds {KINDS.get(type(value), 'null')}")
    return value


def read_object(path: Path, advice: str) -> dict[str, Any]:
    """The JSON object in a file; `advice` says what to do if it cannot be read."""
    with explain_damage(path, advice):
        return parse_object(path.read_bytes())


def read_lines(path: Path, advice: str) -> list[dict[str, Any]]:
    """The objects of a file, one per line. Only LF ends a line: other Unicode line ends occur inside sentences."""
    objects = []
    with explain_damage(path, advice):
        for line_number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            try:
                objects += [parse_object(line)] if line else []
            except ValueError as error:
                raise ValueError(f"line {line_number}: {error}") from error
    return objects


@contextmanager
def explain_damage(path: Path, advice: str) -> Iterator[None]:
    """Report missing keys and wrong types inside the block as damage of this file."""
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
