"""A task as text: a small TOML file says how a row of a table becomes a prompt, and how its answers are spelt.

    kind   = "classify"
    text   = "Review: {sentence}\\nSentiment:"
    label  = "label"
    labels = { "0" = " negative", "1" = " positive" }

Columns stand in braces ({{ and }} are braces themselves). Most vocabularies join a space with the word behind it, so an
answer begins with its space, and the text before it does not end in one.
"""

from __future__ import annotations

import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ValidationError

from stemma.errors import UserError, did_you_mean
from stemma.schema.base import Conflict, ConflictKey, Count, Natural, Settings, constraint
from stemma.schema.recipe_checks import explain
from stemma.tasks.kinds import task_kind, task_kinds
from stemma.text.tables import MAX_COLUMNS_SHOWN, Table, cell_text

FIELD = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")
NO_HEADER = 'name the columns in the template: columns = ["text", "label"]'
ANSWER_CONTEXT = "Answer:"
NonEmptyStr = Annotated[str, constraint(lambda text: bool(text), "must not be empty")]
Normalization = Literal["none", "length", "byte", "unconditional"]


@dataclass(frozen=True)
class PromptExample:
    """One row as text. `right` is the place of the right one among `answers`; a question's answers are all right."""

    text: str
    answers: tuple[str, ...]
    gold_index: int
    label: str
    line: int

    @property
    def with_answer(self) -> str:
        return self.text + self.answers[self.gold_index]


class PromptTemplate(Settings, ABC):
    kind: str
    text: NonEmptyStr  # up to where the answer begins
    instruction: str = ""  # once, before everything
    separator: str = "\n\n"  # between the instruction, the examples and the question
    columns: list[str] = []  # names them for files that have no header

    def required_columns(self) -> Iterator[str]:
        """The columns that rows must have."""
        yield from field_names(self.text)

    @abstractmethod
    def render(self, row: Mapping[str, object], line: int) -> PromptExample:
        """One row, or a ValueError that says what is wrong with it."""


class LikelihoodTemplate(PromptTemplate):
    """Answers are given, and the likeliest is taken."""

    label: NonEmptyStr  # the column with the right answer
    normalization: Normalization = "none"  # what a log-probability is divided by: nothing, tokens, bytes; or P(answer)
    answer_context: str | None = None  # P(answer) is that behind this text alone

    def required_columns(self) -> Iterator[str]:
        yield from super().required_columns()
        yield self.label

    def conflicts(self) -> Iterator[Conflict]:
        if self.answer_context is not None and self.normalization != "unconditional":
            yield (ConflictKey("answer_context", 'does nothing without normalization = "unconditional"'),)


class ClassificationTemplate(LikelihoodTemplate):
    labels: dict[str, str]  # what is in the column -> how it is said

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if len(self.labels) < 2:
            yield (ConflictKey("labels", "must have two entries at least"),)
        if len(set(self.labels.values())) < len(self.labels) or "" in self.labels.values():
            yield (ConflictKey("labels", "must each be said in words of its own"),)

    def render(self, row: Mapping[str, object], line: int) -> PromptExample:
        label = cell_text(row[self.label])
        if label not in self.labels:
            raise ValueError(f'labels has nothing to say for "{label}" (it has {", ".join(self.labels)})')
        said = tuple(self.labels.values())
        return PromptExample(fill_fields(self.text, row), said, list(self.labels).index(label), label, line)


class MultipleChoiceTemplate(LikelihoodTemplate):
    choices: list[str]  # "{column}" alone may hold a list of them
    label_as: Literal["number", "letter", "text"] = "number"
    first: Natural = 0  # the number of the first choice

    def required_columns(self) -> Iterator[str]:
        yield from super().required_columns()
        for choice in self.choices:
            yield from field_names(choice)

    def render(self, row: Mapping[str, object], line: int) -> PromptExample:
        answers = tuple(text for choice in self.choices for text in fill_list_fields(choice, row))
        label = cell_text(row[self.label]).strip()
        if len(answers) < 2:
            raise ValueError("has fewer than two choices")
        if self.label_as == "text":
            known = [answer.strip() for answer in answers]
        else:
            known = [str(self.first + number) if self.label_as == "number" else chr(ord("A") + number)
                     for number in range(len(answers))]
            label = label.upper()
        if label not in known:
            hint = "" if self.label_as == "text" else f" of {', '.join(known)}"
            raise ValueError(f'{self.label} is "{label}", which is none{hint} (see label_as and first)')
        return PromptExample(fill_fields(self.text, row), answers, known.index(label), label, line)


class GenerationTemplate(PromptTemplate):
    """The answer is written, and compared."""

    answer: NonEmptyStr  # "{column}" alone may hold a list of right ones
    stop: list[str] = ["\n"]  # the answer ends before one of these
    tokens: Count = 32  # and after so many at the latest

    def required_columns(self) -> Iterator[str]:
        yield from super().required_columns()
        yield from field_names(self.answer)

    def render(self, row: Mapping[str, object], line: int) -> PromptExample:
        answers = tuple(fill_list_fields(self.answer, row))
        if not answers:
            raise ValueError("has no answer")
        return PromptExample(fill_fields(self.text, row), answers, 0, answers[0].strip(), line)


def field_names(text: str) -> list[str]:
    """The columns that stand in braces."""
    return [found[1] for found in FIELD.finditer(text) if found[1]]


def fill_fields(text: str, row: Mapping[str, object]) -> str:
    return FIELD.sub(lambda found: cell_text(row[found[1]]) if found[1] else found[0][0], text)


def fill_list_fields(text: str, row: Mapping[str, Any]) -> list[str]:
    """As `fill`; where the column holds a list, once for each of its entries."""
    lists = [name for name in field_names(text) if isinstance(row[name], list)]
    if not lists:
        return [fill_fields(text, row)]
    return [fill_fields(text, {**row, lists[0]: entry}) for entry in row[lists[0]]]


def load_template(path: str | Path) -> PromptTemplate:
    path = Path(path)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"there is no template {path}; `stemma prompt --help` shows one.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"the template {path} cannot be read: {error}.") from error
    known = {name: found for name in task_kinds() if (found := task_kind(name).prompt_template()) is not None}
    kind = known.get(str(values.get("kind")))
    if kind is None:
        said = f'is of kind "{values["kind"]}"' if "kind" in values else "has no kind"
        raise UserError(f"the template {path} {said}; choose {', '.join(known)}."
                        f"{did_you_mean(str(values.get('kind')), known)}")
    try:
        template = kind.model_validate(values)
        problems = [(conflict[0].key, conflict[0].message) for conflict in template.conflicts()]
    except ValidationError as error:
        problems = [(problem.location, problem.message) for problem in explain(error, values, kind)]
    if problems:
        raise UserError(f"the template {path} cannot be used", problems)
    return template


def render_examples(template: PromptTemplate, table: Table) -> list[PromptExample]:
    """Every row as text; or all that is wrong, columns first."""
    if problems := table.problems(template.required_columns(), NO_HEADER):
        raise UserError(f"the template does not fit {table.name}", problems)
    found, wrong = [], []
    for row, line in zip(table.rows, table.lines, strict=True):
        try:
            found.append(template.render(row, line))
        except ValueError as error:
            wrong.append((f"line {line}", str(error)))
    if wrong:
        more = [("", f"and {len(wrong) - MAX_COLUMNS_SHOWN:,} more")] if len(wrong) > MAX_COLUMNS_SHOWN else []
        raise UserError(f"the template does not fit {len(wrong):,} row{'s' if len(wrong) > 1 else ''} of {table.name}",
                        [*wrong[:MAX_COLUMNS_SHOWN], *more])
    return found
