"""Readers of multiple-choice data: SWAG, RACE, Story Cloze, and user tables.

SWAG (arXiv:1808.05326, https://github.com/rowanz/swagaf): csv, where `sent1` is the context, `sent2` begins the next
sentence, and ending0 to ending3 end it. RACE (arXiv:1704.04683, https://www.cs.cmu.edu/~glai1/data/race): a folder of
JSON texts, one article each, answers as letters. Story Cloze (arXiv:1604.01696,
https://cs.rochester.edu/nlp/rocstories): csv, four sentences and two endings, with the correct one counted from 1.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stemma.errors import UserError
from stemma.tasks.data.examples import ChoiceExample
from stemma.tasks.data.file_reader import ErrorCollector, FileReader
from stemma.tasks.data.text_tables import Names, resolve_columns
from stemma.text.readers import list_files
from stemma.text.tables import Table, cell_text

logger = logging.getLogger(__name__)

LETTERS = "ABCDEFGHIJ"
NO_HEADER = "put a line with the names of the columns above the rows"
OPTION = re.compile(r"(?:option|ending|choice)[ _-]?\w+", re.IGNORECASE)
Row = tuple[str, str, str, Sequence[Any], Any, Any]  # where, context, question, options, label, id


def read_choices(path: str | Path, columns: Mapping[str, str] | None, reader: FileReader) -> list[ChoiceExample]:
    """A table with `context`, `question` (may be missing), `options` (a JSON list) or columns option_a, option_b and so
    on, and `label`: the index of the correct option, counted from 0, or its letter."""
    names = resolve_columns({"context": ("context",), "question": ("question",), "options": ("options",),
                             "label": ("label",), "id": ("id",)}, columns)
    table = reader.table(path)
    named = [name.strip() for name in names["options"][0].split(",")]
    option_columns = named if named != ["options"] else \
        [column for column in table.columns if column == "options" or OPTION.fullmatch(column)]
    if not option_columns:
        raise UserError(f"{table.name} has no options: it needs columns option_a, option_b and so on, or a list named "
                        f"options. {table.describe_columns(('context', 'options', 'label'), NO_HEADER)}")
    needed = [names["context"][0], *option_columns, *(names[role][0] for role in columns or {} if role != "options")]
    if problems := table.problems(needed, NO_HEADER):
        raise UserError(f"{table.name} lacks columns", problems)
    unlabelled = names["label"][0] not in table.columns
    return _examples(table.name, _table_rows(table, names, option_columns), unlabelled, reader)


def _table_rows(table: Table, names: Mapping[str, Names], option_columns: Sequence[str]) -> Iterator[Row]:
    for index, row in enumerate(table.rows):
        first = row[option_columns[0]]
        options = first if isinstance(first, list) else [row[column] for column in option_columns]
        question = row.get(names["question"][0]) or ""
        yield (table.location(index), cell_text(row[names["context"][0]]), cell_text(question), options,
               row.get(names["label"][0]), row.get(names["id"][0]))


def read_swag(path: str | Path, reader: FileReader) -> list[ChoiceExample]:
    table = reader.table(path)
    options = [f"ending{index}" for index in range(4)]
    _require_columns(table, ["sent1", "sent2", *options], "SWAG")
    names = {"context": ("sent1",), "question": ("sent2",), "label": ("label",), "id": ("",)}
    return _examples(table.name, _table_rows(table, names, options), "label" not in table.columns, reader)


def read_story_cloze(path: str | Path, reader: FileReader) -> list[ChoiceExample]:
    table = reader.table(path)
    story = [f"InputSentence{index}" for index in range(1, 5)]
    endings = ["RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"]
    _require_columns(table, [*story, *endings], "Story Cloze")
    answer = "AnswerRightEnding"

    def rows() -> Iterator[Row]:
        for index, row in enumerate(table.rows):
            label = {"1": 0, "2": 1}.get(cell_text(row.get(answer)).strip(), row.get(answer))
            yield (table.location(index), " ".join(cell_text(row[column]).strip() for column in story), "",
                   [row[ending] for ending in endings], label, row.get("InputStoryid"))

    return _examples(table.name, rows(), answer not in table.columns, reader)


def read_race(path: str | Path, reader: FileReader) -> list[ChoiceExample]:
    """Read the articles of a folder (train/high, or train for both schools), or a single article."""
    def rows() -> Iterator[Row]:
        for file in list_files([path]):
            name, article = reader.json(file)
            try:
                answers = article.get("answers") or [None] * len(article["questions"])
                for question_number, (question, options, answer) in enumerate(
                        zip(article["questions"], article["options"], answers, strict=True)):
                    yield (f"{name}, question {question_number + 1}", article["article"], question, options, answer,
                           f"{article.get('id', file.name)}:{question_number}")
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise UserError(f"{name} is no article of RACE ({error}); it should be a JSON object with article, and "
                                "with lists of questions, options and answers that are equally long.") from error

    return _examples(str(path), rows(), False, reader)


def _require_columns(table: Table, columns: Sequence[str], dataset: str) -> None:
    if problems := table.problems(columns, NO_HEADER):
        raise UserError(f"{table.name} is no file of {dataset}", problems)


def _examples(name: str, rows: Iterator[Row], unlabelled: bool, reader: FileReader) -> list[ChoiceExample]:
    problems, examples = ErrorCollector(name), []
    listed = list(rows)
    unlabelled = unlabelled or all(label in (None, "") for *_, label, _ in listed)
    if unlabelled:
        logger.warning(f"{name} has no labels; its rows are read as unlabelled.")
    for where, context, question, options, label, identity in listed:
        texts = tuple(cell_text(option).strip() if option is not None else "" for option in options)
        gold = None if unlabelled else _gold_index(label, len(texts))
        if len(texts) < 2:
            problems.add(where, "fewer than two options")
        elif empty := [index for index, text in enumerate(texts) if not text]:
            problems.add(where, f"nothing in option {empty[0]}")
        elif not context.strip() and not question.strip():
            problems.add(where, "neither a context nor a question")
        elif gold is None and not unlabelled:
            problems.add(where, f"the label {json.dumps(label, ensure_ascii=False)} is none of the indices 0 to "
                                f"{len(texts) - 1}, nor a letter from A on")
        else:
            example_id = None if identity is None else cell_text(identity)
            examples.append(ChoiceExample(where, context.strip(), question.strip(), texts, gold, example_id))
    problems.raise_if_any()
    return examples


def _gold_index(label: object, count: int) -> int | None:
    text = cell_text(label).strip()
    index = LETTERS.find(text.upper()) if len(text) == 1 and text.isalpha() else int(text) if text.isdecimal() else -1
    return index if 0 <= index < count else None
