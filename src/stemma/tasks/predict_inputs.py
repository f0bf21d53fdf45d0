"""Inputs of `predict` as a stream: plain text, JSON lines or tables of any size, in chunks of a few hundred rows.

Label columns are ignored. The readers of training data read the rows, so the same columns, names and checks apply.
Plain text has one text per line, or two separated by a tab; blank lines are skipped.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from stemma.errors import UserError, pluralize
from stemma.json_files import parse
from stemma.notes import silenced
from stemma.tasks.data.file_reader import FileReader
from stemma.tasks.datasets import read_examples
from stemma.tasks.kinds import HeadTask, PredictInput, head_task
from stemma.text.readers import list_files
from stemma.text.tables import FORMATS, Table, parse_header
from stemma.text.text_io import check_encoding, display_name, format_suffix, read_text

CHUNK_ROWS, CHUNK_CHARACTERS = 256, 1_000_000  # limits of a chunk


def read_inputs(kind: str, path: str | Path, *, file_format: str | None = None,
                columns: Mapping[str, str] | None = None, encoding: str = "utf-8",
                errors: str = "strict") -> Iterator[list[PredictInput]]:
    """The rows of a file in chunks. `file_format` names a task kind or a data set; the file is then read at once, like
    a training file. SQuAD JSON always is."""
    task = head_task(kind)
    if file_format is None and format_suffix(Path(path)) in task.whole_file_suffixes:
        file_format = kind
    if file_format is not None:
        examples = read_examples(file_format, path, columns=columns, encoding=encoding, errors=errors)
        for start in range(0, len(examples), CHUNK_ROWS):
            yield [task.to_input(example.without_gold()) for example in examples[start:start + CHUNK_ROWS]]
        return
    for file in list_files([path]):
        lines = _lines(file, check_encoding(encoding, errors), errors)
        first = next(((line_number, line) for line_number, line in lines if line.strip()), None)
        if first is None:
            raise UserError(f"{display_name(file)} is empty; there is nothing to answer.")
        reader = _InputReader(task, display_name(file), columns)
        format_name = FORMATS.get(format_suffix(file)) or ("jsonl" if first[1].startswith("{") else "plain")
        yield from getattr(reader, format_name)(chain([first], lines))


def inputs_from_memory(kind: str, rows: Sequence[str | Mapping[str, object]],
                       columns: Mapping[str, str] | None = None) -> Iterator[list[PredictInput]]:
    """Texts, or dictionaries with named columns, in order, as chunks."""
    if not rows:
        raise UserError("there is no row to answer; give a text, or a dictionary with named columns.")
    reader = _InputReader(head_task(kind), "the rows", columns)
    for is_text, same_type in groupby(enumerate(rows, 1), key=lambda row: isinstance(row[1], str)):
        group = list(same_type)
        if is_text:
            if blank := [row_number for row_number, text in group if not str(text).strip()]:
                raise UserError(f"the rows, line {blank[0]} has no text; leave it out.")
            yield from reader.plain((row_number, str(text)) for row_number, text in group)
        else:
            dicts = [dict(row) for _, row in group if not isinstance(row, str)]
            yield reader._read(list(dict.fromkeys(key for row in dicts for key in row)), dicts,
                               [row_number for row_number, _ in group])


@dataclass(frozen=True)
class _ChunkReader(FileReader):
    """A file reader that returns the rows of the current chunk."""

    rows: Table = field(default_factory=lambda: Table("", [], [], []))

    def is_json_lines(self, path: str | Path) -> bool:
        return True

    def table(self, path: str | Path, header: Sequence[str] | None = None, chosen: Collection[str] = ()) -> Table:
        return self.rows


@dataclass(frozen=True)
class _InputReader:
    """Reads the rows of one file; one method per format."""

    kind: HeadTask
    name: str
    columns: Mapping[str, str] | None

    def jsonl(self, lines: Iterable[tuple[int, str]]) -> Iterator[list[PredictInput]]:
        for chunk in _chunks(lines):
            rows = [(line_number, self._object(line_number, line)) for line_number, line in chunk if line.strip()]
            if rows:
                yield self._read(list(dict.fromkeys(key for _, row in rows for key in row)), [row for _, row in rows],
                                 [line_number for line_number, _ in rows])

    def _object(self, line_number: int, line: str) -> dict[str, Any]:
        try:
            row = parse(line)
        except ValueError as error:
            raise UserError(f"{self.name}, line {line_number} is not JSON ({getattr(error, 'msg', error)}); correct "
                            "it.") from error
        if not isinstance(row, dict):
            raise UserError(f'{self.name}, line {line_number} is not a JSON object; it must look like '
                            '{"text": "..."}.')
        return row

    def tsv(self, lines: Iterable[tuple[int, str]]) -> Iterator[list[PredictInput]]:
        return self._table((line_number, line.split("\t")) for line_number, line in lines if line.strip())

    def csv(self, lines: Iterable[tuple[int, str]]) -> Iterator[list[PredictInput]]:
        reader = csv.reader((line + "\n" for _, line in lines), strict=True)

        def rows() -> Iterator[tuple[int, list[str]]]:
            line_number = 1
            try:
                for row in reader:
                    if any(cell.strip() for cell in row):
                        yield line_number, row
                    line_number = reader.line_num + 1
            except csv.Error as error:
                raise UserError(f"{self.name}, line {line_number}: {error}; a quote within a quoted cell is written "
                                "twice.") from error

        return self._table(rows())

    def plain(self, lines: Iterable[tuple[int, str]]) -> Iterator[list[PredictInput]]:
        if not self.kind.accepts_lines:
            raise UserError(f"{self.name} is plain text, and a task of the kind {self.kind.name} has several texts; "
                            'give JSON lines, such as {"context": "...", "question": "..."}.')
        if self.columns:
            raise UserError(f"{self.name} is plain text, so there are no columns to rename; give .tsv, .csv or .jsonl.")
        for chunk in _chunks(lines):
            if inputs := [self.kind.input_from_line(f"{self.name}, line {line_number}", line_number, line.strip())
                          for line_number, line in chunk if line.strip()]:
                yield inputs

    def _table(self, rows: Iterator[tuple[int, list[str]]]) -> Iterator[list[PredictInput]]:
        first = next(rows)
        columns, has_header = parse_header(first[1], (self.columns or {}).values())
        rows = rows if has_header else chain([first], rows)
        pending: list[tuple[int, list[str]]] = []
        size = 0
        for line_number, cells in rows:
            if len(cells) != len(columns):
                first_row = "header" if has_header else "first line"
                raise UserError(f"{self.name}, line {line_number} has {pluralize(len(cells), 'cell')} where the "
                                f"{first_row} has {len(columns)}; correct it.")
            pending.append((line_number, cells))
            size += sum(map(len, cells))
            if len(pending) >= CHUNK_ROWS or size >= CHUNK_CHARACTERS:
                yield self._cells(columns, pending, has_header)
                pending, size = [], 0
        if pending:
            yield self._cells(columns, pending, has_header)

    def _cells(self, columns: list[str], rows: list[tuple[int, list[str]]], has_header: bool) -> list[PredictInput]:
        return self._read(columns, [dict(zip(columns, cells, strict=True)) for _, cells in rows],
                          [line_number for line_number, _ in rows], has_header)

    def _read(self, columns: list[str], rows: list[dict[str, object]], lines: list[int],
              has_header: bool = False) -> list[PredictInput]:
        named = set((self.columns or {}).values())
        ignored = {column for column in columns
                   if column.casefold() in self.kind.gold_columns and column not in named}
        table = Table(self.name, [column for column in columns if column not in ignored],
                      [{key: value for key, value in row.items() if key not in ignored} for row in rows], lines,
                      has_header)
        with silenced():  # inputs have no labels, so no warning
            examples = self.kind.read_rows(self.name, self.columns, _ChunkReader(rows=table))
        inputs = [self.kind.to_input(example, line=line) for example, line in zip(examples, lines, strict=True)]
        if self.kind.assigns_ids and "id" not in columns:  # ids that were numbered within a chunk are meaningless
            for predict_input in inputs:
                predict_input.echo.pop("id", None)
        return inputs


def _lines(file: Path, encoding: str, errors: str) -> Iterator[tuple[int, str]]:
    """Lines end at LF only: other Unicode line ends occur inside sentences."""
    line_number, incomplete = 0, ""
    for block in read_text(file, encoding, errors):
        *complete, incomplete = (incomplete + block).split("\n")
        for line in complete:
            line_number += 1
            yield line_number, line
    if incomplete:
        yield line_number + 1, incomplete


def _chunks(lines: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    chunk: list[tuple[int, str]] = []
    size = 0
    for line_number, line in lines:
        chunk.append((line_number, line))
        size += len(line)
        if len(chunk) >= CHUNK_ROWS or size >= CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
