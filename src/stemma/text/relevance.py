"""Reads query-title relevance data from search logs: tables with the columns query, title and label.

Labels are numbers from 0, or words, which are numbered in sorted order. The set of labels is known only at the end of
the last file, so the files are streamed twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from stemma.errors import UserError, pluralize
from stemma.notes import quietly
from stemma.text.line_errors import LineErrors, json_objects
from stemma.text.parallel import NumberedLines, comma_rows
from stemma.text.readers import clean_text, list_files, read_lines
from stemma.text.tables import FORMATS, cell_text
from stemma.text.text_io import COMPRESSED, STDIN, check_encoding, display_name, format_suffix

logger = logging.getLogger(__name__)

COLUMNS = ("query", "title", "label")
SUFFIXES = tuple(kind + packed for kind in FORMATS for packed in ("", *COMPRESSED))
MAX_LABELS = 254  # 1 + label must fit a byte; 0 is no label
ADVICE = "a row has a query, a title and a label"
Row = tuple[int, list[Any]]  # first line, cells


@dataclass(frozen=True, slots=True)
class RelevanceExample:
    """A query, a title and the index of their relevance label."""

    query: str
    title: str
    label: int


@dataclass(frozen=True)
class RelevanceData:
    """Rows of relevance files; `labels` has the classes in the order of their indices."""

    files: list[Path]
    encoding: str
    errors: str
    labels: list[str]

    def rows(self) -> Iterator[RelevanceExample]:
        label_ids = {label: index for index, label in enumerate(self.labels)}
        for file in self.files:
            for query, title, label in quietly(_read(file, self.encoding, self.errors)):  # the second time
                yield RelevanceExample(query, title, label_ids[label])


def open_relevance(paths: Sequence[str | Path], *, encoding: str = "utf-8", errors: str = "strict") -> RelevanceData:
    """First pass: check all rows and collect the labels."""
    encoding, files = check_encoding(encoding, errors), list_files(paths, SUFFIXES)
    if STDIN in files:
        raise UserError("--relevance reads its text twice, which stdin cannot give; name a file.")
    distinct = {label for file in files for _, _, label in _read(file, encoding, errors)}
    if len(distinct) > MAX_LABELS or (numbers := _numbers(distinct)) and numbers[-1] >= MAX_LABELS:
        raise UserError(f"the column label of {display_name(files[0])} holds {len(distinct):,} different values, up to "
                        f'"{max(distinct)}"; labels are a few numbers from 0 on, or a few words.')
    if numbers is not None:
        return RelevanceData(files, encoding, errors, [str(label) for label in range(numbers[-1] + 1)])
    labels = sorted(distinct)
    logger.info("labels are numbered " + ", ".join(f'{index} = "{label}"' for index, label in enumerate(labels)) + ".")
    return RelevanceData(files, encoding, errors, labels)


def _numbers(labels: set[str]) -> list[int] | None:
    """The labels as sorted numbers; None if they are not numbers."""
    if all(label.isascii() and label.isdigit() and str(int(label)) == label for label in labels):
        return sorted(map(int, labels))
    return None


def _read(file: Path, encoding: str, errors: str) -> Iterator[tuple[str, str, str]]:
    name, line_errors, count = display_name(file), LineErrors(), 0
    kind = FORMATS.get(format_suffix(file), "tsv")
    lines = (line for line in read_lines(file, encoding, errors) if kind == "csv" or line[1].strip())
    rows = _objects(lines, name, line_errors) if kind == "jsonl" else _cells(lines, kind, name, line_errors)
    for line, cells in rows:
        where = f"{name}, line {line}"
        texts = [clean_text(cell_text(cell), where, errors).strip() for cell in cells]
        if missing := [column for column, text in zip(COLUMNS, texts, strict=True) if not text]:
            line_errors.add(where, f"has no {' and no '.join(missing)}")
        elif not line_errors.lines:  # after an error, the rest is read only to count further errors
            count += 1
            yield texts[0], texts[1], texts[2]
    line_errors.raise_if_any(f"rows of {name} cannot be used", ADVICE)
    if not count:
        raise UserError(f"there is no row in {name}; {ADVICE}.")


def _cells(lines: NumberedLines, kind: str, name: str, line_errors: LineErrors) -> Iterator[Row]:
    rows = ((line, text.split("\t")) for line, text in lines) if kind == "tsv" else comma_rows(name, lines)
    first = next(rows, None)
    if first is None:
        return
    head = [cell.strip().lower() for cell in first[1]]
    if set(COLUMNS) <= set(head):
        indices = [head.index(column) for column in COLUMNS]
    elif len(head) == len(COLUMNS) and not set(COLUMNS) & set(head):
        logger.info(f"{name} has no header, so its columns are read as {', '.join(COLUMNS)}.")
        indices, rows = list(range(len(COLUMNS))), chain([first], rows)
    else:
        missing = [column for column in COLUMNS if column not in head]
        raise UserError(f"{name} has no column {' and no column '.join(missing)} (its first line has: "
                        f"{', '.join(cell[:20] for cell in head)}); name its columns {', '.join(COLUMNS)}.")
    for line, row in rows:
        if len(row) == len(head):
            yield line, [row[index] for index in indices]
        else:
            line_errors.add(f"{name}, line {line}", f"has {pluralize(len(row), 'column')} instead of {len(head)}")


def _objects(lines: NumberedLines, name: str, line_errors: LineErrors) -> Iterator[Row]:
    for line_number, row in json_objects(lines, name, line_errors):
        yield line_number, ["" if row.get(column) is None else row[column] for column in COLUMNS]
