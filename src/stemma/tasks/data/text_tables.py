"""Reader of tables with texts and a label in named columns, as most data sets have.

A schema lists the names of each column. A file whose first line contains none of them has no header; its columns are
then the headerless ones of the schema with the same count.
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
    """The columns of a data set: texts, label, query and id."""

    texts: tuple[Names, ...]
    label: Names = ("label",)
    group: Names = ()  # the query, for ranking
    id: Names = ("index", "id", "pairID", "qid")
    headerless_columns: tuple[Names, ...] = ()  # the columns of files without a header
    numeric_label: bool = False  # regression
    join: bool = False  # join all text columns into one text
    clean: Callable[[str], str] = lambda text: text
    label_aliases: Mapping[str, str] = field(default_factory=dict)  # spelling in some files -> label
    no_gold_labels: Names = ()  # values that mean unlabelled
    row_filter: tuple[str, str] | None = None  # (column, value): keep only these rows if the column exists
    skip_bad_rows: bool = False  # skip and count unreadable rows of the published files
    label_last: bool = False  # the last cell is the label, even in rows with too many cells


def read_texts(path: str | Path, schema: TableSchema, reader: FileReader,
               labels: Sequence[str] | None = None) -> list[TextExample]:
    """Read all rows of a file; `labels` are the allowed labels."""
    return examples_from_table(_read_table(path, schema, reader, labels or ()), schema, reader, labels)


def examples_from_table(table: Table, schema: TableSchema, file_reader: FileReader, labels: Sequence[str] | None = None,
                        require_label: bool = False) -> list[TextExample]:
    """Convert rows to examples. `require_label`: the user named the label column, so it must exist."""
    columns_by_name = {_normalize_name(column): column for column in reversed(table.columns)}

    def column(names: Names) -> str | None:
        return next((columns_by_name[key] for name in names if (key := _normalize_name(name)) in columns_by_name), None)

    texts = [column(names) for names in schema.texts]
    label, group, identity = column(schema.label), column(schema.group), column(schema.id)
    missing = [names[0] for names, text in zip(schema.texts, texts, strict=True) if text is None]
    if require_label and label is None:
        missing.append(schema.label[0])
    if missing:
        hints = "".join(did_you_mean(name, table.columns) for name in missing)
        roles = [names[0] for names in (*schema.texts, schema.label)]
        has_known_column = any(column(names) for names in (*schema.texts, schema.label, schema.group))
        present = f"It has {', '.join(table.columns)}." if has_known_column or hints else table.describe_columns(roles)
        raise UserError(f"{table.name} has no column {' and no '.join(missing)}.{hints} {present}")
    if label is None or all(_empty(row.get(label)) for row in table.rows):
        if schema.label:
            logger.warning(f"{table.name} has no {schema.label[0]}; its rows are read as unlabelled.")
        label = None
    reader = _RowReader(table, schema, [text for text in texts if text is not None], label, group, identity, labels)
    return reader.read(file_reader)


def resolve_columns(roles: Mapping[str, Names], columns: Mapping[str, str] | None) -> dict[str, Names]:
    """The accepted column names of each role; `columns` overrides some of them."""
    columns = columns or {}
    for role in columns:
        if role not in roles:
            raise UserError(f'no column is called "{role}" here; rename {", ".join(roles)}.{did_you_mean(role, roles)}')
    return {role: (columns[role],) if role in columns else names for role, names in roles.items()}


@dataclass
class _RowReader:
    """Converts the rows of a table to examples; the fields name the columns."""

    table: Table
    schema: TableSchema
    texts: list[str]
    label: str | None
    group: str | None
    identity: str | None
    labels: Sequence[str] | None

    def read(self, reader: FileReader) -> list[TextExample]:
        problems, examples = ErrorCollector(self.table.name), []
        num_unlabelled = num_bad = 0
        for index, row in enumerate(self.table.rows):
            where = self.table.location(index)
            if self.schema.row_filter:
                column, value = self.schema.row_filter
                if row.get(column, value) != value:
                    continue
            if self.label is not None and row.get(self.label) in self.schema.no_gold_labels:
                num_unlabelled += 1
                continue
            example, errors = self.example(where, row)
            num_bad += bool(errors)
            for problem in errors:
                problems.add(where, problem)
            if example is not None:
                examples.append(example)
        name = self.table.name
        if num_unlabelled:
            logger.warning(f"{name}: left out {pluralize(num_unlabelled, 'row')} that the annotators did not agree on.")
        if self.schema.skip_bad_rows and problems.problems:
            where, problem = problems.problems[0]
            logger.warning(f"{name}: left out {pluralize(num_bad, 'row')} that cannot be read, the first at {where} "
                           f"({problem}).")
        else:
            problems.raise_if_any()
        if not examples:
            raise UserError(f"{name} has no example in any of its {pluralize(len(self.table), 'row')}; is it the file "
                            "that was meant?")
        return examples

    def example(self, where: str, row: Mapping[str, object]) -> tuple[TextExample | None, list[str]]:
        if not row:
            return None, ["a row with too few or too many cells"]
        errors = [f'nothing in column "{column}"' for column in self.texts if _empty(row.get(column))]
        if self.schema.join and len(errors) < len(self.texts):
            errors = []
        label: str | float | None = None
        if self.label is not None:
            label, problem = self.value(row.get(self.label))
            errors += [problem] if problem else []
        if errors:
            return None, errors
        texts = tuple(self.schema.clean(cell_text(row.get(column) or "")).strip() for column in self.texts)
        if self.schema.join:
            texts = (" ".join(filter(None, texts)),)
        group = None
        if self.schema.group:
            group = texts[0] if self.group is None else cell_text(row[self.group])
        identity = None if self.identity is None or row.get(self.identity) is None else cell_text(row[self.identity])
        return TextExample(where, texts, label, group, identity), []

    def value(self, cell: Any) -> tuple[str | float | None, str]:
        """(label, problem)."""
        if _empty(cell):
            return None, f'nothing in column "{self.label}"'
        text = cell_text(cell).strip()
        if self.schema.numeric_label:
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            return (value, "") if math.isfinite(value) else (None, f'"{text}" is no number to learn')
        text = self.schema.label_aliases.get(text, text)
        if self.labels is not None and text not in self.labels:
            return None, f'label "{text}" is none of {", ".join(self.labels)}'
        return text, ""


def _read_table(path: str | Path, schema: TableSchema, reader: FileReader, labels: Sequence[str]) -> Table:
    """Read a table with its own header, or with the headerless columns of the same count whose label is valid."""
    header: Names | None = None
    if schema.headerless_columns:
        cells = re.split("\t" if "\t" in (line := reader.first_line(path)) else ",", line)
        text_columns = {_normalize_name(name) for names in schema.texts for name in names}
        if not line.startswith("{") and not text_columns & {_normalize_name(cell.strip(' "')) for cell in cells}:
            fitting = [names for names in schema.headerless_columns if len(names) == len(cells)]
            header = next((names for names in fitting if dict(zip(names, cells, strict=True)).get("label") in labels),
                          (fitting or schema.headerless_columns)[0])
    if not (schema.skip_bad_rows or schema.label_last) or reader.first_line(path).startswith("{"):
        return reader.table(path, header)
    return _read_ragged_table(*reader.text(path), schema, header)


def _read_ragged_table(name: str, text: str, schema: TableSchema, header: Names | None) -> Table:
    """Read a tab-separated file with rows of different lengths; a row of the wrong length becomes empty, and is
    counted as unreadable later."""
    lines = ((line_number, line.split("\t")) for line_number, line in enumerate(text.split("\n"), 1) if line.strip())
    columns = list(header) if header else [cell.strip() for cell in next(lines)[1]]
    roles = (*schema.texts, schema.label, schema.group, schema.id, schema.row_filter[:1] if schema.row_filter else ())
    needed = {_normalize_name(name) for names in roles for name in names}  # other columns are large, like parse trees
    used = [(index, column) for index, column in enumerate(columns) if _normalize_name(column) in needed]
    rows, line_numbers = [], []
    for line_number, cells in lines:
        if schema.label_last and len(cells) > len(columns):
            cells = [*cells[:len(columns) - 1], cells[-1]]
        rows.append({column: cells[index] for index, column in used} if len(cells) == len(columns) else {})
        line_numbers.append(line_number)
    return Table(name, columns, rows, line_numbers)


def _empty(cell: object) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _normalize_name(name: str) -> str:
    return name.casefold().strip()


SINGLE_TEXT = TableSchema((("text", "sentence", "text_a", "review"),))
TEXT_PAIR = TableSchema((("text_a", "sentence1", "premise", "query", "question1"),
                         ("text_b", "sentence2", "hypothesis", "candidate", "question2")))


def read_user_table(path: str | Path, columns: Mapping[str, str] | None, reader: FileReader, *, single: bool = True,
                    pair: bool = False, grouped: bool = False, numeric_label: bool = False) -> list[TextExample]:
    """Read a user's table whose rows hold a `single` text, a `pair`, or either, and a label. With `grouped`, rows
    belong to queries. `columns` renames the default columns."""
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
    present = {_normalize_name(column) for column in table.columns}
    paired = pair and (not single or any(_normalize_name(name) in present for name in names["text_b"]))
    schema = replace(TEXT_PAIR, texts=(names["text_a"], names["text_b"])) if paired else \
        replace(SINGLE_TEXT, texts=(names["text"],))
    schema = replace(schema, label=names["label"], group=names.get("group", ()), id=names["id"],
                     numeric_label=numeric_label)
    return examples_from_table(table, schema, reader, require_label="label" in (columns or {}))
