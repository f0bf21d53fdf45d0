"""Opening data files, and collecting all their errors into one message."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stemma.errors import UserError, first_problems
from stemma.json_files import parse
from stemma.notes import quietly
from stemma.text.readers import JSON_LINES, list_files
from stemma.text.tables import Table, read_table
from stemma.text.text_io import STDIN, check_encoding, display_name, format_suffix, read_text


@dataclass(frozen=True)
class FileReader:
    """Reads files with an encoding and an error policy for undecodable bytes."""

    encoding: str = "utf-8"
    errors: str = "strict"

    def file(self, path: str | Path) -> Path:
        files = list_files([path])
        if len(files) != 1:
            raise UserError(f"{path} is {len(files)} files; name one.")
        return files[0]

    def is_json_lines(self, path: str | Path) -> bool:
        """Decided by the file name, compressed or not."""
        return format_suffix(self.file(path)) in JSON_LINES

    def text(self, path: str | Path) -> tuple[str, str]:
        """(display name, content)."""
        file = self.file(path)
        text = "".join(read_text(file, check_encoding(self.encoding, self.errors), self.errors))
        if not text.strip():
            raise UserError(f"{display_name(file)} is empty; it should hold examples.")
        return display_name(file), text

    def first_line(self, path: str | Path) -> str:
        """The first line. The file is read again later, so it must not be a pipe."""
        file = self.file(path)
        if file == STDIN:
            raise UserError("this format is read twice, which a pipe does not allow; give a file.")
        blocks = quietly(read_text(file, check_encoding(self.encoding, self.errors), self.errors))
        return next(blocks, "").lstrip("\n").split("\n", 1)[0]

    def table(self, path: str | Path, header: Sequence[str] | None = None, chosen: Collection[str] = ()) -> Table:
        return read_table(path, header, encoding=self.encoding, errors=self.errors, chosen_columns=chosen)

    def json(self, path: str | Path) -> tuple[str, Any]:
        """(display name, parsed JSON)."""
        name, text = self.text(path)
        try:
            return name, parse(text)
        except ValueError as error:
            location = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            raise UserError(f"{name}{location} is not JSON ({getattr(error, 'msg', error)}); "
                            "is it the right file?") from error


@dataclass
class ErrorCollector:
    """Collects errors with their locations; the message shows the first ones and counts all."""

    name: str
    problems: list[tuple[str, str]] = field(default_factory=list)

    def add(self, location: str, problem: str) -> None:
        self.problems.append((location, problem))

    def raise_if_any(self) -> None:
        """Raise one error for all problems, if there are any."""
        if not self.problems:
            return
        if len(self.problems) == 1:
            location, problem = self.problems[0]
            raise UserError(f"{location}: {problem}; correct it.")
        raise UserError(f"{len(self.problems):,} problems in {self.name}; correct them", first_problems(self.problems))
