"""Prompt templates: a TOML file that turns a table row into a prompt and its answers.

    kind   = "classify"
    text   = "Review: {sentence}\\nSentiment:"
    label  = "label"
    labels = { "0" = " negative", "1" = " positive" }

Column names are in braces ({{ and }} are literal braces). Most tokenizers join a space with the following word, so an
answer begins with a space, and the text before it does not end with one.
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

from stemma.errors import UserError, did_you_mean, first_problems, pluralize
from stemma.schema.base import Conflict, ConflictKey, Count, Natural, Settings, constraint
from stemma.schema.recipe_checks import explain
from stemma.tasks.kinds import task_kind, task_kinds
from stemma.text.tables import Table, cell_text

FIELD = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")
NO_HEADER = 'name the columns in the template: columns = ["text", "label"]'
ANSWER_CONTEXT = "Answer:"
NonEmptyStr = Annotated[str, constraint(lambda text: bool(text), "must not be empty")]
Normalization = Literal["none", "length", "byte", "unconditional"]


@dataclass(frozen=True)
class PromptExample:
    """A rendered row. `gold_index` is the correct one of `answers`; in generation, all answers are correct."""

    text: str
    answers: tuple[str, ...]
    gold_index: int
    label: str
    line: int

    @property
    def with_answer(self) -> str:
        return self.text + self.answers[self.gold_index]


class PromptTemplate(Settings, ABC):
    """Base class of templates."""

    kind: str
    text: NonEmptyStr  # the prompt, up to the answer
    instruction: str = ""  # once, at the beginning
    separator: str = "\n\n"  # between the instruction, the examples and the question
    columns: list[str] = []  # column names for files without a header

    def required_columns(self) -> Iterator[str]:
        """The columns that rows must have."""
        yield from field_names(self.text)

    @abstractmethod
    def render(self, row: Mapping[str, object], line: int) -> PromptExample:
        """Render a row; raises a ValueError that describes the problem."""


class LikelihoodTemplate(PromptTemplate):
    """Predicts the answer with the highest likelihood."""

    label: NonEmptyStr  # the column with the gold label
    normalization: Normalization = "none"  # divide log-probabilities by nothing, tokens, bytes or P(answer)
    answer_context: str | None = None  # the context of the unconditional P(answer)

    def required_columns(self) -> Iterator[str]:
        yield from super().required_columns()
        yield self.label

    def conflicts(self) -> Iterator[Conflict]:
        if self.answer_context is not None and self.normalization != "unconditional":
            yield (ConflictKey("answer_context", 'does nothing without normalization = "unconditional"'),)


class ClassificationTemplate(LikelihoodTemplate):
    """One answer per class."""

    labels: dict[str, str]  # label in the file -> answer text

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if len(self.labels) < 2:
            yield (ConflictKey("labels", "must have two entries at least"),)
        if len(set(self.labels.values())) < len(self.labels) or "" in self.labels.values():
            yield (ConflictKey("labels", "must have different, non-empty answers"),)

    def render(self, row: Mapping[str, object], line: int) -> PromptExample:
        label = cell_text(row[self.label])
        if label not in self.labels:
            raise ValueError(f'labels has no answer for "{label}" (it has {", ".join(self.labels)})')
        answers = tuple(self.labels.values())
        return PromptExample(fill_fields(self.text, row), answers, list(self.labels).index(label), label, line)


class MultipleChoiceTemplate(LikelihoodTemplate):
    """One answer per choice of the row."""

    choices: list[str]  # "{column}" alone may hold a list of them
    label_as: Literal["number", "letter", "text"] = "number"
    first: Natural = 0  # the index of the first choice

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
            labels = [answer.strip() for answer in answers]
        else:
            labels = [str(self.first + index) if self.label_as == "number" else chr(ord("A") + index)
                      for index in range(len(answers))]
            label = label.upper()
        if label not in labels:
            hint = "" if self.label_as == "text" else f" of {', '.join(labels)}"
            raise ValueError(f'{self.label} is "{label}", which is none{hint} (see label_as and first)')
        return PromptExample(fill_fields(self.text, row), answers, labels.index(label), label, line)


class GenerationTemplate(PromptTemplate):
    """Generates the answer and compares it with the gold answers."""

    answer: NonEmptyStr  # "{column}" alone may hold a list of gold answers
    stop: list[str] = ["\n"]  # stop strings
    tokens: Count = 32  # maximal number of new tokens

    def required_columns(self) -> Iterator[str]:
        yield from super().required_columns()
        yield from field_names(self.answer)

    def render(self, row: Mapping[str, object], line: int) -> PromptExample:
        answers = tuple(fill_list_fields(self.answer, row))
        if not answers:
            raise ValueError("has no answer")
        return PromptExample(fill_fields(self.text, row), answers, 0, answers[0].strip(), line)


def field_names(text: str) -> list[str]:
    """The column names in braces."""
    return [match[1] for match in FIELD.finditer(text) if match[1]]


def fill_fields(text: str, row: Mapping[str, object]) -> str:
    return FIELD.sub(lambda match: cell_text(row[match[1]]) if match[1] else match[0][0], text)


def fill_list_fields(text: str, row: Mapping[str, Any]) -> list[str]:
    """Like `fill_fields`, once for each entry if the column holds a list."""
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
    templates = {name: cls for name in task_kinds() if (cls := task_kind(name).prompt_template()) is not None}
    kind = templates.get(str(values.get("kind")))
    if kind is None:
        problem = f'is of kind "{values["kind"]}"' if "kind" in values else "has no kind"
        raise UserError(f"the template {path} {problem}; choose {', '.join(templates)}."
                        f"{did_you_mean(str(values.get('kind')), templates)}")
    try:
        template = kind.model_validate(values)
        problems = [(conflict[0].key, conflict[0].message) for conflict in template.conflicts()]
    except ValidationError as error:
        problems = [(problem.location, problem.message) for problem in explain(error, values, kind)]
    if problems:
        raise UserError(f"the template {path} cannot be used", problems)
    return template


def render_examples(template: PromptTemplate, table: Table) -> list[PromptExample]:
    """Render all rows, or raise an error with all problems, columns first."""
    if problems := table.problems(template.required_columns(), NO_HEADER):
        raise UserError(f"the template does not fit {table.name}", problems)
    examples, problems = [], []
    for row, line in zip(table.rows, table.lines, strict=True):
        try:
            examples.append(template.render(row, line))
        except ValueError as error:
            problems.append((f"line {line}", str(error)))
    if problems:
        raise UserError(f"the template does not fit {pluralize(len(problems), 'row')} of {table.name}",
                        first_problems(problems))
    return examples
