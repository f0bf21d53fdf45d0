"""Parallel text: pairs of a source and a target, from two files whose lines belong together or from a table of both.

One pass, one line at a time, so memory does not grow with the files. A line without its counterpart would shift all
that follow, so whatever is no pair is an error that names file and line, raised once all such lines are counted.
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
from stemma.text.text_io import COMPRESSED, STDIN, check_encoding, display_name, read_text

logger = logging.getLogger(__name__)

SIDES = ("source", "target")
COLUMNS = ",".join(SIDES)
EMPTY_POLICIES = ("refuse", "skip")
LINE_LIMIT = 1_000_000  # characters; a longer "line" is no sentence, and nothing longer is held in memory
NumberedLines = Iterator[tuple[int, str]]
Row = tuple[int, str, str, tuple[str, ...]]  # line, source, target, further targets


@dataclass(frozen=True)
class PairSource:
    """Where pairs come from: a table, or a file and the `target` file beside it. Sources of one `name` and `prefix`
    that follow each other are one group; the prefix stands before every source, to say which task it is (T5)."""

    path: str | Path
    target: str | Path | None = None
    name: str = ""
    prefix: str = ""
    columns: str = COLUMNS  # of a table, the source first

    @property
    def group(self) -> tuple[str, str]:
        return self.name, self.prefix


@dataclass(frozen=True, slots=True)
class TextPair:
    source: str
    target: str
    group: tuple[str, str] = ("", "")  # name and prefix of where it is from
    extra_targets: tuple[str, ...] = ()  # further targets that would be as good, where a file has several
    line: int = field(default=0, compare=False)  # of its file


def pair_sources(paths: Sequence[str | Path], target: Sequence[str | Path] = (),
                 columns: str = COLUMNS) -> list[PairSource]:
    """What the command line means: each path a table, or with `target` each path and its counterpart, in order."""
    files, others = list_files(paths), list_files(target) if target else []
    if not others:
        return [PairSource(file, columns=columns) for file in files]
    if columns != COLUMNS:
        raise UserError("--columns names the columns of a table and --target the other of two files; give one of them.")
    if len(files) != len(others):
        raise UserError(f"{pluralize(len(files), 'source file')} and {pluralize(len(others), 'target file')}: each needs "
                        "its counterpart; give as many of the one as of the other, in the same order.")
    if STDIN in files and STDIN in others:
        raise UserError("source and target cannot both come from stdin; give a file for one of them.")
    return [PairSource(file, other) for file, other in zip(files, others, strict=True)]


def read_pairs(sources: Sequence[PairSource], *, encoding: str = "utf-8", errors: str = "strict",
               empty: str = "refuse") -> Iterator[TextPair]:
    """Every pair of every source, in order. Settings are checked now, the files as they are reached."""
    if empty not in EMPTY_POLICIES:
        raise UserError(f'--empty is "{empty}"; choose {" or ".join(EMPTY_POLICIES)}.{did_you_mean(empty, EMPTY_POLICIES)}')
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
        other = None if source.target is None else list_files([source.target])[0]
        names = [display_name(path), display_name(other or path)]
        found = _PairErrors()
        skipped = made = 0
        for number, *sides, others in (self._read_table(path, _parse_columns(source.columns),
                                                        found) if other is None else
                                       self._read_aligned(path, other, found)):
            if not all(sides):
                if self.skip:
                    skipped += 1
                    continue
                found.empty += 1
                bare = [side for side, text in enumerate(sides) if not text]
                found.add(f"{names[bare[0]]}, line {number}", "is empty" if other and len(bare) == 1 else
                          f"has no {' and no '.join(SIDES[side] for side in bare)}")
            elif not found.lines:  # once something is wrong, the rest is read only to count what else is
                made += 1
                yield TextPair(source.prefix + sides[0], sides[1], source.group, others, number)
        if found.lines:
            raise found.error(" and ".join(dict.fromkeys(names)))
        if skipped:
            logger.warning(f"{names[0]}: {pluralize(skipped, 'pair')} with an empty side "
                           f"{'is' if skipped == 1 else 'are'} left out.")
        if not made:
            raise UserError(f"there is no pair in {names[0]}, only empty lines or nothing at all.")

    def _read_aligned(self, path: Path, other: Path, found: _PairErrors) -> Iterator[Row]:
        """Two files, line by line; at the end, whether both had as many."""
        names = display_name(path), display_name(other)
        counts = [0, 0]
        for source, target in zip_longest(self._lines(path), self._lines(other)):
            counts = [line[0] if line else count for line, count in zip((source, target), counts, strict=True)]
            if source and target:
                yield source[0], source[1].strip(), target[1].strip(), ()
        if 0 in counts and any(counts):
            bare = counts.index(0)
            raise UserError(f"{names[bare]} is empty and {names[1 - bare]} has {pluralize(max(counts), 'line')}; each "
                            "line needs its counterpart.")
        if counts[0] != counts[1]:
            raise UserError(f"{names[0]} has {pluralize(counts[0], 'line')} and {names[1]} {counts[1]:,}; line by line "
                            "they must belong together, so find where one was lost, or choose files that match.",
                            found.as_problems)

    def _read_table(self, path: Path, columns: tuple[str, str], found: _PairErrors) -> Iterator[Row]:
        lines = self._lines(path)
        first = next((line for line in lines if line[1].strip()), None)
        if first is None:
            raise UserError(f"{display_name(path)} is empty; a table of pairs has a source and a target on each line.")
        kind = _kind(path, first[1])
        lines = chain([first], (line for line in lines if kind == "csv" or line[1].strip()))
        rows = (_objects(lines, columns, display_name(path), found) if kind == "jsonl" else
                self._cells(path, kind, lines, columns, found))
        for number, cells in rows:
            texts = _texts(*cells)
            wrong = next(filter(None, map(self._unreadable, texts)), None)
            if wrong:
                found.add(f"{display_name(path)}, line {number}", wrong)
            else:
                source, target, *others = map(_clean, texts)
                yield number, source, target, tuple(filter(None, others))

    def _cells(self, path: Path, kind: str, lines: NumberedLines, columns: tuple[str, str],
               found: _PairErrors) -> Iterator[tuple[int, list[str]]]:
        """Source and target of each row that has both, of tab- or comma-separated text."""
        name = display_name(path)
        rows = ((number, line.split("\t")) for number, line in lines) if kind == "tsv" else comma_rows(name, lines)
        number, head = next(rows)
        first = head
        head, headed = parse_header(first, columns)
        if set(columns) <= set(head):
            chosen = [head.index(column) for column in columns]
            rows = rows if headed else chain([(number, first)], rows)
        elif ",".join(columns) != COLUMNS or len(head) > 2:
            missing = [column for column in columns if column not in head]
            raise UserError(f"{name} has no column {' and no column '.join(missing)} (its first line has: "
                            f"{', '.join(cell[:20] for cell in head)}); name two of its columns with --columns, or, if "
                            "there is no header, count them: --columns 1,2."
                            f"{did_you_mean(missing[0], head)}")
        else:
            chosen = [0, 1]
            rows = chain([(number, head)], rows)
            if len(head) == 2:
                logger.info(
                    f"{name} has no header with {' and '.join(columns)}, so its first line is read as a pair.")
        hint = "are there tabs inside the text?" if kind == "tsv" else "text with commas must stand in quotes"
        width = max(2, len(head))
        for number, row in rows:
            if len(row) == width:
                yield number, [row[column] for column in chosen]
            else:
                what = ("has one column, not a source and a target" if len(row) == 1 else
                        f"has {pluralize(len(row), 'column')} instead of {width} ({hint})")
                found.add(f"{name}, line {number}", what)

    def _unreadable(self, cell: object) -> str | None:
        """What is wrong with a cell. (JSON can spell what no tokenizer can read.)"""
        if not isinstance(cell, str):
            return f"holds a {type(cell).__name__}, not text"
        if self.errors == "strict" and _clean(cell) != _strip_cell(cell):
            return "has a NUL or half a character (--errors replace drops it)"
        return None

    def _lines(self, file: Path) -> NumberedLines:
        """Numbered lines. Only LF ends one: other line ends of Unicode occur inside sentences."""
        number, waiting = 1, ""
        for block in read_text(file, self.encoding, self.errors):
            *finished, waiting = (waiting + block).split("\n")
            yield from enumerate(finished, number)
            number += len(finished)
            if len(waiting) > LINE_LIMIT:
                raise UserError(f"{display_name(file)}, line {number} is longer than {LINE_LIMIT:,} characters; parallel "
                                "text has one pair a line.")
        if waiting:
            yield number, waiting


def _texts(source: object, target: object) -> list[Any]:
    """Source, target and further targets: in JSON either may be a list, of the sentences of a source or of targets of
    which one is as good as another (SciTLDR). The first is learned."""
    if isinstance(source, list) and all(isinstance(sentence, str) for sentence in source):
        source = " ".join(sentence.strip() for sentence in source)
    return [source, *((target or [""]) if isinstance(target, list) else [target])]


def _strip_cell(cell: str) -> str:
    return cell.replace("\r\n", "\n").replace("\r", "\n").strip()


def _clean(cell: str) -> str:
    """With LF line ends, no NUL, nothing that cannot be written."""
    return _strip_cell(cell).replace("\0", "").encode("utf-8", "replace").decode()


def _kind(path: Path, first: str) -> str:
    """By the suffix; where that says nothing, by the first line."""
    inner = Path(path.stem) if path.suffix.lower() in COMPRESSED else path
    if known := FORMATS.get(inner.suffix.lower()):
        return known
    if first.lstrip().startswith("{"):
        return "jsonl"
    if "\t" in first:
        return "tsv"
    raise UserError(f"{display_name(path)} holds no pairs: its first line has no tab between a source and a target; name "
                    "the file of the other side with --target, or give a .tsv, .csv or .jsonl file.")


def comma_rows(name: str, lines: NumberedLines) -> Iterator[tuple[int, list[str]]]:
    """Rows with the number of the line each begins at: a quoted cell may go on over several."""
    begins = 0

    def text() -> Iterator[str]:
        nonlocal begins
        for number, line in lines:
            begins = begins or number
            yield line + "\n"

    try:
        for row in csv.reader(text(), strict=True):
            if row:  # not an empty line
                yield begins, row
            begins = 0
    except csv.Error as error:
        raise UserError(f"{name}, line {begins}: {error}; a quote within a quoted cell is written twice.") from error


def _objects(lines: NumberedLines, columns: tuple[str, str], name: str,
             found: _PairErrors) -> Iterator[tuple[int, list[Any]]]:
    for number, row in json_objects(lines, name, found):
        if missing := [column for column in columns if column not in row]:
            known = ", ".join(row) or "nothing"
            found.add(f"{name}, line {number}",
                      f"has no {' and no '.join(missing)}, only {known} (choose with --columns)")
        else:
            yield number, ["" if row[column] is None else row[column] for column in columns]
