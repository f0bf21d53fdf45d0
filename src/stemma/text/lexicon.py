"""Reads a user's annotations: a lexicon (an entry per line, optionally a tab and its type), or spans (document, start
and end character, optionally a type) as tab-separated columns or JSON lines. Offsets count from 0; ends are exclusive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stemma.errors import UserError, first_problems
from stemma.json_files import parse
from stemma.text.readers import JSON_LINES
from stemma.text.text_io import check_encoding, read_bytes

COLUMNS = ("document", "start", "end", "type")
Problems = list[tuple[str, str]]


@dataclass(frozen=True)
class Lexicon:
    """A list of entries."""

    entries: dict[str, str | None]  # entry -> type


@dataclass(frozen=True)
class AnnotatedSpans:
    """Non-overlapping spans, sorted by document and position."""

    table: np.ndarray  # (S, 3): document, start, end
    kinds: list[str | None]
    lines: np.ndarray  # (S,) line of each span in the file

    def __len__(self) -> int:
        return len(self.table)


def read_annotations(path: str | Path, encoding: str = "utf-8") -> Lexicon | AnnotatedSpans:
    """A lexicon or spans: a file with three columns or more, or JSON lines, has spans."""
    path = Path(path)
    lines = _lines(path, encoding)
    if path.suffix.lower() in JSON_LINES:
        return _spans(path, [(line_number, _from_json(line)) for line_number, line in lines])
    if lines[0][1].count("\t") >= 2:
        if lines[0][1].split("\t")[0].strip().lower() == COLUMNS[0]:
            lines = lines[1:]  # header
        return _spans(path, [(line_number, _from_columns(line)) for line_number, line in lines])
    return _lexicon(path, lines)


def _lines(path: Path, encoding: str) -> list[tuple[int, str]]:
    """(number, text) of each line. The file is read as a whole: a lexicon fits in memory."""
    encoding = check_encoding(encoding, "strict")
    data = b"".join(read_bytes(path))
    try:
        text = data.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        line = data[:error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line} is not {encoding} (byte 0x{data[error.start]:02x}); name the file's "
                        "encoding with --encoding, such as gb18030 for many Chinese lists.") from error
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    if not text.strip():
        raise UserError(f"{path} is empty; write an entry a line, or a span a line.")
    return list(enumerate(lines, 1))


def _lexicon(path: Path, lines: Iterable[tuple[int, str]]) -> Lexicon:
    entries: dict[str, str | None] = {}
    problems: Problems = []
    for line_number, line in lines:
        entry, *other_cells = (" ".join(cell.split()) for cell in line.split("\t"))
        kind = other_cells[0] or None if other_cells else None
        if not line.strip():
            problems.append((f"line {line_number}", "is empty"))
        elif not entry:
            problems.append((f"line {line_number}", "has a type and no entry"))
        elif len(other_cells) > 1:
            columns = len(other_cells) + 1
            problems.append((f"line {line_number}", f"has {columns} columns instead of an entry and its type"))
        elif entries.setdefault(entry, kind) != kind:
            problems.append((f"line {line_number}", f'"{entry}" has been given with the type {entries[entry]} before'))
    _raise_problems(path, "lexicon", "write an entry a line, optionally a tab and its type", problems)
    return Lexicon(entries)


def _spans(path: Path, rows: list[tuple[int, list[Any] | str]]) -> AnnotatedSpans:
    """Sort the spans and check that they do not overlap. (`annotate.py` checks them against the text.)"""
    problems = [(f"line {line_number}", row) for line_number, row in rows if isinstance(row, str)]
    spans = [(row, line_number) for line_number, row in rows if not isinstance(row, str)]
    spans.sort(key=lambda item: item[0][:3])
    for (previous, previous_line), (row, line_number) in zip(spans, spans[1:], strict=False):
        if row[0] == previous[0] and row[1] < previous[2]:
            problems.append((f"line {line_number}", f"overlaps the span of line {previous_line}"))
    _raise_problems(path, "list of spans", "write document, start and end, optionally a type, counted from 0", problems)
    table = np.array([row[:3] for row, _ in spans], np.int64).reshape(-1, 3)
    line_numbers = np.array([line_number for _, line_number in spans], np.int64)
    return AnnotatedSpans(table, [row[3] for row, _ in spans], line_numbers)


def _from_json(line: str) -> list[Any] | str:
    """The four values of a line, or its problem."""
    try:
        row = parse(line) if line.strip() else None
    except ValueError:
        return "is no JSON"
    if row is None:
        return "is empty"
    missing = [name for name in COLUMNS[:3] if not isinstance(row, dict) or name not in row]
    return f"has no {' and no '.join(missing)}" if missing else _validate_span([row.get(name) for name in COLUMNS])


def _from_columns(line: str) -> list[Any] | str:
    cells = [cell.strip() for cell in line.split("\t")]
    if not line.strip():
        return "is empty"
    if not 3 <= len(cells) <= 4:
        return f"has {len(cells)} columns instead of document, start, end and perhaps a type"
    return _validate_span([*(int(cell) if cell.isdecimal() else cell for cell in cells[:3]), *cells[3:], None][:4])


def _validate_span(row: list[Any]) -> list[Any] | str:
    for name, value in zip(COLUMNS, row[:3], strict=False):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            return f"{name} is {value!r} instead of a whole number from 0 on"
    if row[1] >= row[2]:
        return f"ends at {row[2]}, which is not after its start {row[1]}"
    return [*row[:3], str(row[3]) if row[3] not in (None, "") else None]


def _raise_problems(path: Path, what: str, advice: str, problems: Problems) -> None:
    if problems:
        problems.sort(key=lambda problem: int(problem[0].split()[1]))
        raise UserError(f"{path} is no {what} that can be read; {advice}:", first_problems(problems))
