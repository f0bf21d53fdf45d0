"""Collects the errors of a file: the number of bad lines, and the first of them for the message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stemma.errors import MAX_PROBLEMS_SHOWN, UserError
from stemma.json_files import parse


@dataclass
class LineErrors:
    """Count of bad lines, and (location, problem) of the first ones."""

    lines: int = 0
    first: list[tuple[str, str]] = field(default_factory=list)

    def add(self, where: str, what: str) -> None:
        self.lines += 1
        if len(self.first) < MAX_PROBLEMS_SHOWN:
            self.first.append((where, what))

    @property
    def as_problems(self) -> list[tuple[str, str]]:
        more = self.lines - len(self.first)
        return [*self.first, ("", f"and {more:,} more")] if more else self.first

    def raise_if_any(self, what: str, advice: str) -> None:
        """Raise a UserError if there is any bad line: `what` describes the lines, `advice` says what to do."""
        if self.lines == 1:
            where, problem = self.first[0]
            raise UserError(f"{where} {problem}; {advice}.")
        if self.lines:
            raise UserError(f"{self.lines:,} {what}; {advice}", self.as_problems)


def json_objects(lines: Iterator[tuple[int, str]], name: str,
                 line_errors: LineErrors) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line that is a JSON object; other lines are added to `faults`."""
    for line_number, line in lines:
        try:
            row = parse(line)
        except ValueError as error:
            line_errors.add(f"{name}, line {line_number}", f"is not JSON ({getattr(error, 'msg', error)})")
            continue
        if isinstance(row, dict):
            yield line_number, row
        else:
            line_errors.add(f"{name}, line {line_number}", "is not a JSON object")
