"""Reader of SQuAD JSON (arXiv:1606.05250, arXiv:1806.03822) and its variants.

Articles hold paragraphs, paragraphs a context and questions, questions answers with their start character. CMRC 2018
(arXiv:1810.07366) was first released without start characters; the first occurrence is then used. CJRC (CAIL 2019) has
booleans as text, and start -1 for answers outside the context: empty ones, and YES and NO, which no span can express,
so those questions are skipped. Also read: JSON lines with `context`, `question` and `answers`, the latter as a list of
{text, answer_start} or as lists of both (the `datasets` library).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stemma.errors import UserError, pluralize
from stemma.tasks.data.examples import Answer, QuestionExample
from stemma.tasks.data.file_reader import ErrorCollector, FileReader
from stemma.tasks.data.text_tables import resolve_columns
from stemma.text.tables import cell_text

logger = logging.getLogger(__name__)

EXPECTED_FORMAT = ('a file like {"data": [{"paragraphs": [{"context": "", '
                   '"qas": [{"id": "", "question": "", "answers": []}]}]}]}')
YES_NO_ANSWERS = ("YES", "NO")


def read_squad(path: str | Path, columns: Mapping[str, str] | None, file_reader: FileReader,
               skip_bad_rows: bool = False) -> list[QuestionExample]:
    """Read all questions. With `skip_bad_rows`, published errors are skipped and counted instead of raised."""
    if file_reader.is_json_lines(path):
        name, entries = _rows(path, columns, file_reader)
    elif columns:
        raise UserError(f"{path} is no table, so there are no columns to rename; give JSON lines.")
    else:
        name, content = file_reader.json(path)
        entries = _entries(name, content)
    reader = _QuestionReader(name, skip_bad_rows)
    examples = [example for where, context, entry in entries if (example := reader.read(where, context, entry))]
    reader.report(file_reader)
    if not examples:
        raise UserError(f"{name} has no questions; give {EXPECTED_FORMAT}.")
    return examples


def _entries(name: str, content: Any) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """(location, context, question) of either article format."""
    try:
        if isinstance(content, list):  # CMRC 2018 as first released
            content = {"data": [{"paragraphs": [{"context": article["context_text"], "qas": article["qas"]}]}
                                for article in content]}
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                for entry in paragraph["qas"]:
                    question_id = entry.get("id", entry.get("query_id"))
                    yield f'{name}, question "{question_id}"', paragraph["context"], entry
    except (KeyError, TypeError, AttributeError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else "a list or an object is in another place"
        raise UserError(f"{name} is no SQuAD file ({problem}); give {EXPECTED_FORMAT}.") from error


def _rows(path: str | Path, columns: Mapping[str, str] | None,
          reader: FileReader) -> tuple[str, Iterator[tuple[str, Any, Mapping[str, Any]]]]:
    names = resolve_columns({"id": ("id",), "context": ("context",), "question": ("question",),
                             "answers": ("answers",)}, columns)
    table = reader.table(path)
    if problems := table.problems([names["context"][0], names["question"][0]]):
        raise UserError(f"{table.name} has no questions about paragraphs", problems)

    def entries() -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
        for index, row in enumerate(table.rows):
            answers = row.get(names["answers"][0])
            if isinstance(answers, dict) and isinstance(answers.get("text"), list):
                answers = [{"text": text, "answer_start": start} for text, start
                           in zip(answers["text"], answers.get("answer_start", []), strict=False)]
            entry = {"id": row.get(names["id"][0], str(index)), "question": row[names["question"][0]],
                     "answers": answers}
            if "is_impossible" in row:
                entry["is_impossible"] = row["is_impossible"]
            elif answers == []:  # an empty list means unanswerable
                entry["is_impossible"] = True
            yield table.location(index), row[names["context"][0]], entry

    return table.name, entries()


class _QuestionReader:
    """Reads the questions of one file, and counts what it skips or corrects."""

    def __init__(self, name: str, skip_bad_rows: bool):
        self.name, self.skip_bad_rows = name, skip_bad_rows
        self.problems, self.skipped = ErrorCollector(name), ErrorCollector(name)
        self.num_realigned = self.num_yes_no = 0
        self.seen_ids: set[str] = set()

    def read(self, where: str, context: Any, entry: Mapping[str, Any]) -> QuestionExample | None:
        question = entry.get("question", entry.get("query_text"))
        identity = cell_text(entry.get("id", entry.get("query_id", str(len(self.seen_ids)))))
        if not isinstance(context, str) or not context.strip() or not isinstance(question, str) or not question.strip():
            self._add_problem(where, f"no {'question' if isinstance(context, str) and context.strip() else 'context'}")
            return None
        if identity in self.seen_ids:
            self._add_problem(where, "another question has this id")
            return None
        self.seen_ids.add(identity)
        impossible = _as_bool(entry.get("is_impossible"))
        raw_answers = [(answer, None) if isinstance(answer, str) else
                       (answer.get("text", ""), answer.get("answer_start"))
                       for answer in entry.get("answers") or []]
        if any(start == -1 and text in YES_NO_ANSWERS for text, start in raw_answers):
            self.num_yes_no += 1
            return None
        raw_answers = [(text, start) for text, start in raw_answers if text]
        if impossible and raw_answers and not self.skip_bad_rows:
            self._add_problem(where, "is_impossible, and yet there is an answer")
            return None
        if not raw_answers:
            return QuestionExample(where, identity, context, question, (), impossible or None)
        located = [self._locate_answer(where, context, text, start) for text, start in raw_answers]
        answers = tuple(answer for answer in located if answer is not None)
        return QuestionExample(where, identity, context, question, answers, False) if answers else None

    def _locate_answer(self, where: str, context: str, text: str, start: object) -> Answer | None:
        """The answer at its stated start, or at its only occurrence."""
        first = context.find(text)
        if start is None and first >= 0:
            return Answer(text, first)
        if isinstance(start, int) and start >= 0 and context.startswith(text, start):
            return Answer(text, start)
        if first >= 0 and context.find(text, first + 1) < 0:
            self.num_realigned += 1
            return Answer(text, first)
        preview = text if len(text) <= 40 else f"{text[:40]}..."
        problem = "is nowhere in its paragraph" if first < 0 else f"is in its paragraph, but not at character {start}"
        self._add_problem(where, f'the answer "{preview}" {problem}')
        return None

    def _add_problem(self, where: str, what: str) -> None:
        (self.skipped if self.skip_bad_rows else self.problems).add(where, what)

    def report(self, reader: FileReader) -> None:
        self.problems.raise_if_any()
        if self.num_realigned:
            logger.warning(f"{self.name}: {pluralize(self.num_realigned, 'answer')} not at the stated start; each "
                           "occurs once, and that position is used.")
        if self.num_yes_no:
            logger.warning(f"{self.name}: left out {pluralize(self.num_yes_no, 'question')} with the answer YES "
                           "or NO, which is no span of the text.")
        if self.skipped.problems:
            where, what = self.skipped.problems[0]
            logger.warning(f"{self.name}: left out {pluralize(len(self.skipped.problems), 'answer')}, the first of "
                           f"{where}: {what}.")


def _as_bool(value: Any) -> bool | None:
    return value.strip().casefold() == "true" if isinstance(value, str) else value
