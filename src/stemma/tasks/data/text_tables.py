"""Texts with a label in named columns: most data sets are this, and differ in nothing but the names.

A layout says which names each column goes by. A file whose first line has none of them has no header; its cells are
then those of the layout that has as many.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stemma.errors import UserError, did_you_mean, pluralize
from stemma.tasks.data.examples import TextExample
from stemma.tasks.data.file_reader import ErrorCollector, FileReader
from stemma.text.tables import Table, cell_text

logger = logging.getLogger(__name__)

Names = tuple[str, ...]  # of one column, in the files of different publishers


@dataclass(frozen=True)
class TableSchema:
    """Where the texts and the label of a data set stand."""

    texts: tuple[Names, ...]
    label: Names = ("label",)
    group: Names = ()  # what is ranked together
    id: Names = ("index", "id", "pairID", "qid")
    headerless_columns: tuple[Names, ...] = ()  # the columns of files without a header
    numeric_label: bool = False  # the label is one
    join: bool = False  # all the columns are one text
    clean: Callable[[str], str] = lambda text: text
    label_aliases: Mapping[str, str] = field(default_factory=dict)  # labels that another file of the set spells
    #                                                                 otherwise
    no_gold_labels: Names = ()  # labels that say there is none
    row_filter: tuple[str, str] | None = None  # (column, value): the rows that are meant, where the column exists
    skip_bad_rows: bool = False  # the published files have rows that cannot be read; they are left out and counted
    label_last: bool = False  # a row with too many cells has them before the last, which is the label


def read_texts(path: str | Path, schema: TableSchema, reader: FileReader,
               labels: Sequence[str] | None = None) -> list[TextExample]:
    """Every row of a data set's file; `labels` are those that there can be."""
    return examples_from_table(_read_table(path, schema, reader, labels or ()), schema, reader, labels)


def examples_from_table(table: Table, schema: TableSchema, reading: FileReader, labels: Sequence[str] | None = None,
             require_label: bool = False) -> list[TextExample]:
    """Every row as an example. `must`: the label's column has been asked for, and its absence is no test file."""
    found = {_normalize_name(column): column for column in reversed(table.columns)}

    def column(names: Names) -> str | None:
        return next((found[_normalize_name(name)] for name in names if _normalize_name(name) in found), None)

    texts = [column(names) for names in schema.texts]
    label, group, identity = column(schema.label), column(schema.group), column(schema.id)
    missing = [names[0] for names, there in zip(schema.texts, texts, strict=True) if there is None]
    if require_label and label is None:
        missing.append(schema.label[0])
    if missing:
        hints = "".join(did_you_mean(name, table.columns) for name in missing)
        roles = [names[0] for names in (*schema.texts, schema.label)]
        known = any(column((name,)) for names in (*schema.texts, schema.label, schema.group) for name in names)
        there = f"It has {', '.join(table.columns)}." if known or hints else table.describe_columns(roles)
        raise UserError(f"{table.name} has no column {' and no '.join(missing)}.{hints} {there}")
    if label is None or all(_empty(row.get(label)) for row in table.rows):
        if schema.label:
            logger.warning(f"{table.name} says nothing about {schema.label[0]}; its rows are read without.")
        label = None
    reader = _RowReader(table, schema, [text for text in texts if text is not None], label, group, identity, labels)
    return reader.read(reading)


def resolve_columns(roles: Mapping[str, Names], columns: Mapping[str, str] | None) -> dict[str, Names]:
    """The names that each role's column goes by, where `columns` says otherwise for some of them."""
    columns = columns or {}
    for role in columns:
        if role not in roles:
            raise UserError(f'no column is called "{role}" here; rename {", ".join(roles)}.{did_you_mean(role, roles)}')
    return {role: (columns[role],) if role in columns else names for role, names in roles.items()}


@dataclass
class _RowReader:
    table: Table
    schema: TableSchema
    texts: list[str]
    label: str | None
    group: str | None
    identity: str | None
    labels: Sequence[str] | None

    def read(self, reader: FileReader) -> list[TextExample]:
        problems, examples = ErrorCollector(self.table.name), []
        undecided = faulty = 0
        for number, row in enumerate(self.table.rows):
            where = self.table.location(number)
            if self.schema.row_filter and row.get(self.schema.row_filter[0],
                                                  self.schema.row_filter[1]) != self.schema.row_filter[1]:
                continue
            if self.label is not None and row.get(self.label) in self.schema.no_gold_labels:
                undecided += 1
                continue
            made, wrong = self.example(where, row)
            faulty += bool(wrong)
            for what in wrong:
                problems.add(where, what)
            if made is not None:
                examples.append(made)
        name = self.table.name
        if undecided:
            logger.warning(f"{name}: left out {pluralize(undecided, 'row')} that the annotators did not agree on.")
        if self.schema.skip_bad_rows and problems.problems:
            where, what = problems.problems[0]
            logger.warning(f"{name}: left out {pluralize(faulty, 'row')} that cannot be read, the first at {where} "
                           f"({what}).")
        else:
            problems.raise_if_any()
        if not examples:
            raise UserError(f"{name} has no example in any of its {pluralize(len(self.table), 'row')}; is it the file "
                            "that was meant?")
        return examples

    def example(self, where: str, row: Mapping[str, object]) -> tuple[TextExample | None, list[str]]:
        if not row:
            return None, ["a row with too few or too many cells"]
        wrong = [f'nothing in column "{column}"' for column in self.texts if _empty(row.get(column))]
        if self.schema.join and len(wrong) < len(self.texts):
            wrong = []
        label: str | float | None = None
        if self.label is not None:
            label, problem = self.value(row.get(self.label))
            wrong += [problem] if problem else []
        if wrong:
            return None, wrong
        texts = tuple(self.schema.clean(cell_text(row.get(column) or "")).strip() for column in self.texts)
        if self.schema.join:
            texts = (" ".join(filter(None, texts)),)
        group = None
        if self.schema.group:
            group = texts[0] if self.group is None else cell_text(row[self.group])
        identity = None if self.identity is None or row.get(self.identity) is None else cell_text(row[self.identity])
        return TextExample(where, texts, label, group, identity), []

    def value(self, cell: Any) -> tuple[str | float | None, str]:
        """The label and what is wrong with it."""
        if _empty(cell):
            return None, f'nothing in column "{self.label}"'
        text = cell_text(cell).strip()
        if self.schema.numeric_label:
            try:
                number = float(text)
            except ValueError:
                number = math.nan
            return (number, "") if math.isfinite(number) else (None, f'"{text}" is no number to learn')
        text = self.schema.label_aliases.get(text, text)
        if self.labels is not None and text not in self.labels:
            return None, f'label "{text}" is none of {", ".join(self.labels)}'
        return text, ""


def _read_table(path: str | Path, schema: TableSchema, reader: FileReader, labels: Sequence[str]) -> Table:
    """With the header that the file has, or else with the bare layout that has as many cells and its label in place."""
    header: Names | None = None
    if schema.headerless_columns:
        cells = re.split("\t" if "\t" in (line := reader.first_line(path)) else ",", line)
        known = {_normalize_name(name) for names in schema.texts for name in names}
        if not line.startswith("{") and not known & {_normalize_name(cell.strip(' "')) for cell in cells}:
            fitting = [bare for bare in schema.headerless_columns if len(bare) == len(cells)]
            header = next((bare for bare in fitting if dict(zip(bare, cells, strict=True)).get("label") in labels),
                          (fitting or schema.headerless_columns)[0])
    if not (schema.skip_bad_rows or schema.label_last) or reader.first_line(path).startswith("{"):
        return reader.table(path, header)
    return _read_ragged_table(*reader.text(path), schema, header)


def _read_ragged_table(name: str, text: str, schema: TableSchema, header: Names | None) -> Table:
    """A tab-separated file that was published with rows of different lengths. What a row lacks makes it unreadable
    below, since its cells are then taken for nothing."""
    lines = ((number, line.split("\t")) for number, line in enumerate(text.split("\n"), 1) if line.strip())
    columns = list(header) if header else [cell.strip() for cell in next(lines)[1]]
    roles = (*schema.texts, schema.label, schema.group, schema.id, schema.row_filter[:1] if schema.row_filter else ())
    wanted = {_normalize_name(name) for names in roles for name in names}  # the rest is large: parse trees of every
    #                                                                        sentence
    kept = [(place, column) for place, column in enumerate(columns) if _normalize_name(column) in wanted]
    rows, numbers = [], []
    for number, cells in lines:
        if schema.label_last and len(cells) > len(columns):
            cells = [*cells[:len(columns) - 1], cells[-1]]
        rows.append({column: cells[place] for place, column in kept} if len(cells) == len(columns) else {})
        numbers.append(number)
    return Table(name, columns, rows, numbers)


def _empty(cell: object) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _normalize_name(name: str) -> str:
    return name.casefold().strip()


SINGLE_TEXT = TableSchema((("text", "sentence", "text_a", "review"),))
TEXT_PAIR = TableSchema((("text_a", "sentence1", "premise", "query", "question1"),
               ("text_b", "sentence2", "hypothesis", "candidate", "question2")))


def read_user_table(path: str | Path, columns: Mapping[str, str] | None, reader: FileReader, *, single: bool = True,
               pair: bool = False, grouped: bool = False, numeric_label: bool = False) -> list[TextExample]:
    """A table of one's own whose rows hold `one` text, `two`, or either, and a label that may be a number; with
    `grouped`, rows belong to queries. `columns` renames the defaults."""
    roles: dict[str, Names] = {"text": SINGLE_TEXT.texts[0], "text_a": TEXT_PAIR.texts[0], "text_b": TEXT_PAIR.texts[1],
                               "label": ("label", "score", "gold_label"), "group": ("group", "query_id", "qid"),
                               "id": ("id", "index")}
    if not pair:
        roles = {role: roles[role] for role in ("text", "label", "id")}
    elif not single:
        roles.pop("text")
    if not grouped:
        roles.pop("group", None)
    names = resolve_columns(roles, columns)
    table = reader.table(path, chosen=(columns or {}).values())
    there = {_normalize_name(column) for column in table.columns}
    paired = pair and (not single or any(_normalize_name(name) in there for name in names["text_b"]))
    layout = replace(TEXT_PAIR, texts=(names["text_a"], names["text_b"])) if paired else \
        replace(SINGLE_TEXT, texts=(names["text"],))
    layout = replace(layout, label=names["label"], group=names.get("group", ()), id=names["id"],
                     numeric_label=numeric_label)
    return examples_from_table(table, layout, reader, require_label="label" in (columns or {}))
