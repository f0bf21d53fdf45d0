"""Examples of all task kinds: input texts, gold label and source location.

A label, answer or tag of None is unknown, as in test files whose labels are not published.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase
from typing import Any, Self

MAX_PREVIEW = 300  # characters


class Example(ABC):
    """Base class of examples: a frozen dataclass whose first field is `where`."""

    __slots__ = ()
    where: str  # "train.tsv, line 3"

    @abstractmethod
    def input_texts(self) -> tuple[str, ...]:
        """The input texts; examples with equal input texts are duplicates."""

    @property
    @abstractmethod
    def has_gold(self) -> bool:
        """Whether the gold label is known."""

    @abstractmethod
    def without_gold(self) -> Self:
        """A copy without the gold label."""

    def classes(self) -> Iterable[str]:
        """The gold classes of this example; empty if the task has no classes."""
        return ()

    def located_classes(self) -> Iterable[tuple[str, str]]:
        """(location, class) of each gold class."""
        return [(self.where, label) for label in self.classes()]

    def echo(self) -> dict[str, Any]:
        """Fields that a prediction repeats to identify the example."""
        return {"text": " ".join(self.input_texts())}

    def preview(self) -> dict[str, Any]:
        """Shortened fields for reports."""
        return {"text": shorten(" ".join(self.input_texts()))}


@dataclass(frozen=True, slots=True)
class TextExample(Example):
    """One or more texts with a class label, or a number for regression."""

    where: str
    texts: tuple[str, ...]
    label: str | float | None
    group: str | None = None  # the query, for ranking
    id: str | None = None

    def input_texts(self) -> tuple[str, ...]:
        return self.texts

    @property
    def has_gold(self) -> bool:
        return self.label is not None

    def without_gold(self) -> TextExample:
        return replace(self, label=None)

    def classes(self) -> Iterable[str]:
        return () if self.label is None else (str(self.label),)

    def echo(self) -> dict[str, Any]:
        return dict(zip(text_column_names(len(self.texts)), self.texts, strict=True))

    def preview(self) -> dict[str, Any]:
        return {name: shorten(text) for name, text in self.echo().items()}


@dataclass(frozen=True, slots=True)
class ChoiceExample(Example):
    """Multiple choice; `label` is the index of the correct option."""

    where: str
    context: str
    question: str  # may be empty
    options: tuple[str, ...]
    label: int | None
    id: str | None = None

    def input_texts(self) -> tuple[str, ...]:
        return (self.context, self.question, *self.options)

    @property
    def has_gold(self) -> bool:
        return self.label is not None

    def without_gold(self) -> ChoiceExample:
        return replace(self, label=None)

    def classes(self) -> Iterable[str]:
        return () if self.label is None else (str(self.label),)

    def echo(self) -> dict[str, Any]:
        return {"question": self.question or self.context, "options": list(self.options)}

    def preview(self) -> dict[str, Any]:
        return {"context": shorten(self.context), "question": shorten(self.question),
                "options": [shorten(option) for option in self.options]}


@dataclass(frozen=True, slots=True)
class Answer:
    """A span of the context: context[start:start + len(text)] == text."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class QuestionExample(Example):
    """A question about a paragraph; all gold answers are equally correct."""

    where: str
    id: str
    context: str
    question: str
    answers: tuple[Answer, ...]
    impossible: bool | None  # unanswerable; None: unknown

    def input_texts(self) -> tuple[str, ...]:
        return self.context, self.question

    @property
    def has_gold(self) -> bool:
        return bool(self.answers) or self.impossible is True

    def without_gold(self) -> QuestionExample:
        return replace(self, answers=(), impossible=None)

    def classes(self) -> Iterable[str]:
        """Either "answerable" or "unanswerable"."""
        return () if self.impossible is None else ("unanswerable" if self.impossible else "answerable",)

    def echo(self) -> dict[str, Any]:
        """Omits the paragraph, which many questions share."""
        return {"question": self.question}

    def preview(self) -> dict[str, Any]:
        return {"question": shorten(self.question), "context": shorten(self.context)}


@dataclass(frozen=True, slots=True)
class TaggedExample(Example):
    """The words of a sentence, with a tag for each."""

    where: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None

    def input_texts(self) -> tuple[str, ...]:
        return self.words

    @property
    def has_gold(self) -> bool:
        return self.tags is not None

    def without_gold(self) -> TaggedExample:
        return replace(self, tags=None)

    def classes(self) -> Iterable[str]:
        return self.tags or ()

    def located_classes(self) -> Iterable[tuple[str, str]]:
        return [(f"{self.where}, word {index + 1} ({word})", tag)
                for index, (word, tag) in enumerate(zip(self.words, self.tags or (), strict=False))]

    def preview(self) -> dict[str, Any]:
        return {"words": list(self.words)}


def text_column_names(count: int) -> list[str]:
    """Column names: "text", or "text_a", "text_b" and so on."""
    return ["text"] if count == 1 else [f"text_{letter}" for letter in ascii_lowercase[:count]]


def shorten(text: str) -> str:
    return text if len(text) <= MAX_PREVIEW else f"{text[:MAX_PREVIEW]}..."


def labels_of(examples: Iterable[Example]) -> list[str]:
    """All classes (or tags) that occur, in numeric order if they are numbers, else alphabetically."""
    labels = set(label_counts(examples))
    try:
        return sorted(labels, key=lambda label: (float(label), label))
    except ValueError:
        return sorted(labels)


def label_counts(examples: Iterable[Example]) -> dict[str, int]:
    """Counts of the classes, most frequent first."""
    counts: Counter[str] = Counter()
    for example in examples:
        counts.update(example.classes())
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def duplicate_fraction(train: Sequence[Example], dev: Sequence[Example]) -> float:
    """The fraction of `dev` examples whose input texts also occur in `train`."""
    seen = {example.input_texts() for example in train}
    return sum(example.input_texts() in seen for example in dev) / max(1, len(dev))
