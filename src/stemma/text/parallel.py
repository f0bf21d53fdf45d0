"""Reads parallel text: pairs of source and target, from two line-aligned files or from a table.

One pass, one line at a time. A missing line would shift all that follow, so every line that is not a pair is an error,
reported with file and line after all of them are counted.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from stemma.errors import UserError, did_you_mean, pluralize
from stemma.text.line_errors import LineErrors, json_objects
from stemma.text.readers import list_files
from stemma.text.tables import FORMATS, parse_header
from stemma.text.text_io import STDIN, check_encoding, display_name, format_suffix, read_text

logger = logging.getLogger(__name__)

SIDES = ("source", "target")
COLUMNS = ",".join(SIDES)
EMPTY_POLICIES = ("refuse", "skip")
LINE_LIMIT = 1_000_000  # characters; bounds the memory
NumberedLines = Iterator[tuple[int, str]]
Row = tuple[int, str, str, tuple[str, ...]]  # line, source, target, further targets


@dataclass(frozen=True)
class PairSource:
    """A source of pairs: a table, or a file and its `target` file. Consecutive sources with equal `name` and `prefix`
    are one set. The prefix is put before every source text, to name the task (T5)."""

    path: str | Path
    target: str | Path | None = None
    name: str = ""
    prefix: str = ""
    columns: str = COLUMNS  # of a table: source, target

    @property
    def group(self) -> tuple[str, str]:
        return self.name, self.prefix


@dataclass(frozen=True, slots=True)
class TextPair:
    """A source text and its target."""

    source: str
    target: str
    group: tuple[str, str] = ("", "")  # name and prefix of its set
    extra_targets: tuple[str, ...] = ()  # further reference targets, if the file has several
    line: int = field(default=0, compare=False)  # line in its file


def pair_sources(paths: Sequence[str | Path], target: Sequence[str | Path] = (),
                 columns: str = COLUMNS) -> list[PairSource]:
    """Sources from the command line: each path is a table, or with `target` each path has a target file, in order."""
    files, targets = list_files(paths), list_files(target) if target else []
    if not targets:
        return [PairSource(file, columns=columns) for file in files]
    if columns != COLUMNS:
        raise UserError("--columns names the columns of a table and --target the other of two files; give one of them.")
    if len(files) != len(targets):
        raise UserError(f"{pluralize(len(files), 'source file')} and {pluralize(len(targets), 'target file')}: each "
                        "needs its counterpart; give as many of the one as of the other, in the same order.")
    if STDIN in files and STDIN in targets:
        raise UserError("source and target cannot both come from stdin; give a file for one of them.")
    return [PairSource(file, target_file) for file, target_file in zip(files, targets, strict=True)]


def read_pairs(sources: Sequence[PairSource], *, encoding: str = "utf-8", errors: str = "strict",
               empty: str = "refuse") -> Iterator[TextPair]:
    """All pairs of all sources, in order. Options are checked immediately, files when they are read."""
    if empty not in EMPTY_POLICIES:
        hint = did_you_mean(empty, EMPTY_POLICIES)
        raise UserError(f'--empty is "{empty}"; choose {" or ".join(EMPTY_POLICIES)}.{hint}')
    encoding = check_encoding(encoding, errors)
    for source in sources:
        _parse_columns(source.columns)
        for path in (source.path, source.target):
            if path is not None and (count := len(list_files([path]))) != 1:
                raise UserError(f"{path} is {count} files; name one for each side.")
    reader = _PairReader(encoding, errors, empty == "skip")
    return chain.from_iterable(map(reader.read, sources))


def _parse_columns(columns: str) -> tuple[str, str]:
    source, _, target = (column.strip() for column in columns.partition(","))
    if not source or not target or source == target or "," in target:
        raise UserError(f'--columns is "{columns}"; name two, the source first: --columns {COLUMNS}.')
    return source, target


@dataclass
class _PairErrors(LineErrors):
    empty: int = 0

    def error(self, name: str) -> UserError:
        drop = ", or drop pairs without a side with --empty skip" if self.empty else ""
        if self.lines == 1:
            where, what = self.first[0]
            return UserError(f"{where} {what}; correct it{drop}.")
        return UserError(f"{self.lines:,} lines of {name} are no pairs; correct them{drop}", self.as_problems)


@dataclass
class _PairReader:
    encoding: str
    errors: str
    skip: bool

    def read(self, source: PairSource) -> Iterator[TextPair]:
        path = list_files([source.path])[0]
        target_path = None if source.target is None else list_files([source.target])[0]
        names = [display_name(path), display_name(target_path or path)]
        problems = _PairErrors()
        skipped = count = 0
        rows = (self._read_table(path, _parse_columns(source.columns), problems) if target_path is None else
                self._read_aligned(path, target_path, problems))
        for line_number, *sides, extra_targets in rows:
            if not all(sides):
                if self.skip:
                    skipped += 1
                    continue
                problems.empty += 1
                missing = [side for side, text in enumerate(sides) if not text]
                problems.add(f"{names[missing[0]]}, line {line_number}",
                             "is empty" if target_path and len(missing) == 1 else
                             f"has no {' and no '.join(SIDES[side] for side in missing)}")
            elif not problems.lines:  # after an error, the rest is read only to count further errors
                count += 1
                yield TextPair(source.prefix + sides[0], sides[1], source.group, extra_targets, line_number)
        if problems.lines:
            raise problems.error(" and ".join(dict.fromkeys(names)))
        if skipped:
            logger.warning(f"{names[0]}: {pluralize(skipped, 'pair')} with an empty side "
                           f"{'is' if skipped == 1 else 'are'} left out.")
        if not count:
            raise UserError(f"there is no pair in {names[0]}, only empty lines or nothing at all.")

    def _read_aligned(self, path: Path, target_path: Path, problems: _PairErrors) -> Iterator[Row]:
        """Two files, line by line; raises if they do not have the same number of lines."""
        names = display_name(path), display_name(target_path)
        counts = [0, 0]
        for source, target in zip_longest(self._lines(path), self._lines(target_path)):
            counts = [line[0] if line else count for line, count in zip((source, target), counts, strict=True)]
            if source and target:
                yield source[0], source[1].strip(), target[1].strip(), ()
        if 0 in counts and any(counts):
            empty = counts.index(0)
            raise UserError(f"{names[empty]} is empty and {names[1 - empty]} has {pluralize(max(counts), 'line')}; "
                            "each line needs its counterpart.")
        if counts[0] != counts[1]:
            raise UserError(f"{names[0]} has {pluralize(counts[0], 'line')} and {names[1]} {counts[1]:,}; line by line "
                            "they must belong together, so find where one was lost, or choose files that match.",
                            problems.as_problems)

    def _read_table(self, path: Path, columns: tuple[str, str], problems: _PairErrors) -> Iterator[Row]:
        lines = self._lines(path)
        first = next((line for line in lines if line[1].strip()), None)
        if first is None:
            raise UserError(f"{display_name(path)} is empty; a table of pairs has a source and a target on each line.")
        kind = _kind(path, first[1])
        lines = chain([first], (line for line in lines if kind == "csv" or line[1].strip()))
        rows = (_objects(lines, columns, display_name(path), problems) if kind == "jsonl" else
                self._cells(path, kind, lines, columns, problems))
        for line_number, cells in rows:
            texts = _texts(*cells)
            problem = next(filter(None, map(self._cell_problem, texts)), None)
            if problem:
                problems.add(f"{display_name(path)}, line {line_number}", problem)
            else:
                source, target, *extra_targets = map(_clean, texts)
                yield line_number, source, target, tuple(filter(None, extra_targets))

    def _cells(self, path: Path, kind: str, lines: NumberedLines, columns: tuple[str, str],
               problems: _PairErrors) -> Iterator[tuple[int, list[str]]]:
        """(line, [source, target]) of each complete row of tab- or comma-separated text."""
        name = display_name(path)
        rows = comma_rows(name, lines) if kind == "csv" else \
            ((line_number, line.split("\t")) for line_number, line in lines)
        line_number, first = next(rows)
        head, has_header = parse_header(first, columns)
        if set(columns) <= set(head):
            indices = [head.index(column) for column in columns]
            rows = rows if has_header else chain([(line_number, first)], rows)
        elif ",".join(columns) != COLUMNS or len(head) > 2:
            missing = [column for column in columns if column not in head]
            raise UserError(f"{name} has no column {' and no column '.join(missing)} (its first line has: "
                            f"{', '.join(cell[:20] for cell in head)}); name two of its columns with --columns, or, if "
                            "there is no header, count them: --columns 1,2."
                            f"{did_you_mean(missing[0], head)}")
        else:
            indices = [0, 1]
            rows = chain([(line_number, head)], rows)
            if len(head) == 2:
                logger.info(
                    f"{name} has no header with {' and '.join(columns)}, so its first line is read as a pair.")
        hint = "are there tabs inside the text?" if kind == "tsv" else "text with commas must be quoted"
        width = max(2, len(head))
        for line_number, row in rows:
            if len(row) == width:
                yield line_number, [row[index] for index in indices]
            else:
                problem = ("has one column, not a source and a target" if len(row) == 1 else
                           f"has {pluralize(len(row), 'column')} instead of {width} ({hint})")
                problems.add(f"{name}, line {line_number}", problem)

    def _cell_problem(self, cell: object) -> str | None:
        """The problem of a cell; None if there is none. (JSON can contain lone surrogates, which no tokenizer accepts.)
        """
        if not isinstance(cell, str):
            return f"holds a {type(cell).__name__}, not text"
        if self.errors == "strict" and _clean(cell) != _strip_cell(cell):
            return "has a NUL or half a character (--errors replace drops it)"
        return None

    def _lines(self, file: Path) -> NumberedLines:
        """(number, text) of each line. Only LF ends a line: other Unicode line ends occur inside sentences."""
        line_number, unfinished = 1, ""
        for block in read_text(file, self.encoding, self.errors):
            *finished, unfinished = (unfinished + block).split("\n")
            yield from enumerate(finished, line_number)
            line_number += len(finished)
            if len(unfinished) > LINE_LIMIT:
                raise UserError(f"{display_name(file)}, line {line_number} is longer than {LINE_LIMIT:,} characters; "
                                "parallel text has one pair a line.")
        if unfinished:
            yield line_number, unfinished


def _texts(source: object, target: object) -> list[Any]:
    """[source, target, further targets]. In JSON the source may be a list of sentences, and the target a list of
    alternatives (SciTLDR), of which the first is used for training."""
    if isinstance(source, list) and all(isinstance(sentence, str) for sentence in source):
        source = " ".join(sentence.strip() for sentence in source)
    return [source, *((target or [""]) if isinstance(target, list) else [target])]


def _strip_cell(cell: str) -> str:
    return cell.replace("\r\n", "\n").replace("\r", "\n").strip()


def _clean(cell: str) -> str:
    """With LF line ends, no NUL, no lone surrogates."""
    return _strip_cell(cell).replace("\0", "").encode("utf-8", "replace").decode()


def _kind(path: Path, first: str) -> str:
    """The format, by the suffix or else by the first line."""
    if kind := FORMATS.get(format_suffix(path)):
        return kind
    if first.lstrip().startswith("{"):
        return "jsonl"
    if "\t" in first:
        return "tsv"
    raise UserError(f"{display_name(path)} holds no pairs: its first line has no tab between a source and a target; "
                    "name the file of the other side with --target, or give a .tsv, .csv or .jsonl file.")


def comma_rows(name: str, lines: NumberedLines) -> Iterator[tuple[int, list[str]]]:
    """(first line, cells) of each row; a quoted cell may span several lines."""
    first_line = 0

    def text() -> Iterator[str]:
        nonlocal first_line
        for line_number, line in lines:
            first_line = first_line or line_number
            yield line + "\n"

    try:
        for row in csv.reader(text(), strict=True):
            if row:  # not an empty line
                yield first_line, row
            first_line = 0
    except csv.Error as error:
        raise UserError(f"{name}, line {first_line}: {error}; a quote within a quoted cell is written twice.") \
            from error


def _objects(lines: NumberedLines, columns: tuple[str, str], name: str,
             problems: _PairErrors) -> Iterator[tuple[int, list[Any]]]:
    for line_number, row in json_objects(lines, name, problems):
        if missing := [column for column in columns if column not in row]:
            keys = ", ".join(row) or "nothing"
            problems.add(f"{name}, line {line_number}",
                         f"has no {' and no '.join(missing)}, only {keys} (choose with --columns)")
        else:
            yield line_number, ["" if row[column] is None else row[column] for column in columns]
