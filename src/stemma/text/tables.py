"""Reads tables of examples: tab- or comma-separated text with a header, or JSON lines.

Tab-separated files follow GLUE: a quotation mark is an ordinary character, and only a tab ends a cell. Comma-separated
files follow the usual rules: a quoted cell may contain commas and line ends.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stemma.errors import MAX_PROBLEMS_SHOWN, UserError, did_you_mean, first_problems
from stemma.json_files import parse
from stemma.text.readers import JSON_LINES, list_files
from stemma.text.text_io import check_encoding, display_name, format_suffix, read_text

MAX_CELL_SHOWN = 30  # characters of a cell, in an error
FORMATS = {".tsv": "tsv", ".csv": "csv", **dict.fromkeys(JSON_LINES, "jsonl")}


@dataclass(frozen=True)
class Table:
    """Rows by column name. Cells are text, or any JSON value; `lines` has the first line of each row."""

    name: str
    columns: list[str]
    rows: list[dict[str, Any]]
    lines: list[int]
    has_header: bool = False  # the columns are the cells of the first line, which may actually be a row

    def __len__(self) -> int:
        return len(self.rows)

    def location(self, row: int) -> str:
        return f"{self.name}, line {self.lines[row]}"

    def describe_columns(self, roles: Sequence[str], advice: str = "") -> str:
        """Lists the columns, for an error message. If none of the `roles` is a column, the first line may be a row;
        `advice` then says how to name the columns."""
        if not self.has_header or set(roles) & set(self.columns):
            return f"It has {', '.join(self.columns)}."
        by_index = ",".join(f"{role}={index}" for index, role in enumerate(roles, 1))
        first = ", ".join(json.dumps(_shorten(cell), ensure_ascii=False) for cell in self.columns)
        return f"Its first line is {first}: no header? Then {advice or f'count the columns: --columns {by_index}'}."

    def problems(self, required: Iterable[str], advice: str = "") -> list[tuple[str, str]]:
        """Required columns that are missing in the file or in some of its rows."""
        problems, required = [], list(dict.fromkeys(required))
        for column in required:
            without = [line for line, row in zip(self.lines, self.rows, strict=True) if column not in row]
            if column not in self.columns:
                hint = did_you_mean(column, self.columns) or f" {self.describe_columns(required, advice)}"
                problems.append((column, f"{self.name} has no such column.{hint}"))
            elif without:
                problems.append((column, f"missing in {self.name}, line{_join_lines(without)}"))
        return problems


def read_table(path: str | Path, header: Sequence[str] | None = None, *, encoding: str = "utf-8",
               errors: str = "strict", chosen_columns: Collection[str] = ()) -> Table:
    """All rows of one file. `header` names the columns of a file without a header line (CoLA); numbers in
    `chosen_columns` do the same."""
    files = list_files([path])
    if len(files) != 1:
        raise UserError(f"{path} is {len(files)} files; name one table.")
    text = "".join(read_text(files[0], check_encoding(encoding, errors), errors))
    name = display_name(files[0])
    if not text.strip():
        raise UserError(f"{name} is empty; a table needs a header and rows.")
    kind = _kind(files[0], text)
    if kind == "jsonl":
        table = json_table(name, text)
    else:
        cells = _tab_separated(text) if kind == "tsv" else _comma_separated(name, text)
        table = _with_header(name, cells, header, kind, chosen_columns)
    if not table.rows:
        raise UserError(f"{name} has a header and no rows.")
    return table


def _kind(file: Path, text: str) -> str:
    """The format, by the suffix or else by the first line."""
    if kind := FORMATS.get(format_suffix(file)):
        return kind
    first = text.lstrip().split("\n", 1)[0]
    if first.startswith("{"):
        return "jsonl"
    if "\t" in first or "," in first:
        return "tsv" if "\t" in first else "csv"
    raise UserError(f"{display_name(file)} cannot be read as a table: its first line has no tab, no comma and no "
                    "JSON; give a .tsv or .csv file with a header, or .jsonl.")


def _tab_separated(text: str) -> list[tuple[int, list[str]]]:
    """(line, cells) of each row. Only LF ends a line: other Unicode line ends occur inside sentences."""
    return [(line_number, line.split("\t")) for line_number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _comma_separated(name: str, text: str) -> list[tuple[int, list[str]]]:
    cells = []
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line_number = 1
    try:
        for row in reader:
            if row and any(cell.strip() for cell in row):
                cells.append((line_number, row))
            line_number = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{name}, line {line_number}: {error}; a quote within a quoted cell is written twice.") \
            from error
    return cells


def parse_header(first: Sequence[str], chosen_columns: Collection[str]) -> tuple[list[str], bool]:
    """(column names, whether the first line is a header). If all `chosen_columns` are numbers, there is no header and
    columns are numbered from 1, unless the first line itself has only numbers."""
    columns = [cell.strip() for cell in first]
    by_index = bool(chosen_columns) and all(map(str.isdecimal, chosen_columns))
    if by_index and not all(map(str.isdecimal, columns)):
        return [str(index) for index in range(1, len(columns) + 1)], False
    return columns, True


def _with_header(name: str, cells: list[tuple[int, list[str]]], header: Sequence[str] | None, kind: str,
                 chosen: Collection[str]) -> Table:
    columns, has_header = parse_header(cells[0][1], chosen) if header is None else (list(header), False)
    if has_header:
        del cells[0]
    if duplicates := sorted({column for column in columns if columns.count(column) > 1}):
        raise UserError(f'{name} has two columns named "{_shorten(duplicates[0])}"; rename one, or put a header above '
                        "the rows if there is none.")
    ragged = [(line, len(row)) for line, row in cells if len(row) != len(columns)]
    if ragged:
        hint = "; are there tabs inside the text?" if kind == "tsv" else "; text with commas must be quoted"
        raise UserError(f"{name}: {len(ragged):,} row{'s do' if len(ragged) > 1 else ' does'} not have the "
                        f"{len(columns)} cells of the header{hint}",
                        first_problems([(f"line {line}", f"{count} cell{'s' if count > 1 else ''}")
                                        for line, count in ragged]))
    return Table(name, columns, [dict(zip(columns, row, strict=True)) for _, row in cells],
                 [line for line, _ in cells], has_header)


def json_table(name: str, text: str) -> Table:
    """One JSON object per line; the columns are the keys of all rows."""
    rows, lines, problems = [], [], []
    for line_number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = parse(line)
        except ValueError as error:
            problems.append((f"line {line_number}", f"is not JSON ({getattr(error, 'msg', error)})"))
            continue
        if isinstance(row, dict):
            rows.append(row)
            lines.append(line_number)
        else:
            problems.append((f"line {line_number}", "is not a JSON object"))
    if problems:
        counted = f"{len(problems):,} lines that are not JSON objects" if len(problems) > 1 \
            else "a line that is not a JSON object"
        raise UserError(f"{name} has {counted}; "
                        'every line must look like {"text": "...", "label": 1}', first_problems(problems))
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return Table(name, columns, rows, lines)


def _shorten(cell: str) -> str:
    return cell if len(cell) <= MAX_CELL_SHOWN else f"{cell[:MAX_CELL_SHOWN]}..."


def cell_text(value: object) -> str:
    """A cell as text; values other than strings as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _join_lines(lines: Sequence[int]) -> str:
    more = f" and {len(lines) - MAX_PROBLEMS_SHOWN:,} more" if len(lines) > MAX_PROBLEMS_SHOWN else ""
    return f"{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines[:MAX_PROBLEMS_SHOWN]))}{more}"
