"""What the readers make of any data set: an example knows the line it came from, what a model reads, and its answer.

A label, answer or tag that is None is unknown, as in the test files that official servers keep the answers of.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase
from typing import Any, Self

MAX_PREVIEW = 300  # characters of a text that is shown


class Example(ABC):
    """One example of any kind of task: a frozen dataclass whose first field is `where`."""

    __slots__ = ()
    where: str  # "train.tsv, line 3"

    @abstractmethod
    def input_texts(self) -> tuple[str, ...]:
        """What a model gets to read; two examples with the same content are the same question."""

    @property
    @abstractmethod
    def has_gold(self) -> bool:
        """Whether its answer is known."""

    @abstractmethod
    def without_gold(self) -> Self:
        """The same without its answer."""

    def classes(self) -> Iterable[str]:
        """Every class that is stated in it; none where answers are no classes."""
        return ()

    def located_classes(self) -> Iterable[tuple[str, str]]:
        """(where, class) of each of them."""
        return [(self.where, label) for label in self.classes()]

    def echo(self) -> dict[str, Any]:
        """What a prediction repeats of it: enough to know it again."""
        return {"text": " ".join(self.input_texts())}

    def preview(self) -> dict[str, Any]:
        """As people read it, not too long."""
        return {"text": shorten(" ".join(self.input_texts()))}


@dataclass(frozen=True, slots=True)
class TextExample(Example):
    """Texts, and what is said of them: a class, or a number where the task is regression."""

    where: str
    texts: tuple[str, ...]
    label: str | float | None
    group: str | None = None  # the query whose candidates are ranked among each other
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
    """Several ways to go on, of which one is right; `label` is its place."""

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
    """A stretch of the context: context[start:start + len(text)] is the text."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class QuestionExample(Example):
    """A question about a paragraph; every answer is as good as the others."""

    where: str
    id: str
    context: str
    question: str
    answers: tuple[Answer, ...]
    impossible: bool | None  # the paragraph does not say; None: nobody has told us

    def input_texts(self) -> tuple[str, ...]:
        return self.context, self.question

    @property
    def has_gold(self) -> bool:
        return bool(self.answers) or self.impossible is True

    def without_gold(self) -> QuestionExample:
        return replace(self, answers=(), impossible=None)

    def classes(self) -> Iterable[str]:
        """A question with an answer counts as "answerable"."""
        return () if self.impossible is None else ("unanswerable" if self.impossible else "answerable",)

    def echo(self) -> dict[str, Any]:
        """Without the paragraph, which many questions share."""
        return {"question": self.question}

    def preview(self) -> dict[str, Any]:
        return {"question": shorten(self.question), "context": shorten(self.context)}


@dataclass(frozen=True, slots=True)
class TaggedExample(Example):
    """A sentence in words, and a tag for each of them."""

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
        return [(f"{self.where}, word {place + 1} ({word})", tag)
                for place, (word, tag) in enumerate(zip(self.words, self.tags or (), strict=False))]

    def preview(self) -> dict[str, Any]:
        return {"words": list(self.words)}


def text_column_names(count: int) -> list[str]:
    """What each of so many texts is called."""
    return ["text"] if count == 1 else [f"text_{letter}" for letter in ascii_lowercase[:count]]


def shorten(text: str) -> str:
    return text if len(text) <= MAX_PREVIEW else f"{text[:MAX_PREVIEW]}..."


def labels_of(examples: Iterable[Example]) -> list[str]:
    """Every class that occurs (of tagged words: every tag), numbers in their order and everything else by spelling."""
    found = set(label_counts(examples))
    try:
        return sorted(found, key=lambda label: (float(label), label))
    except ValueError:
        return sorted(found)


def label_counts(examples: Iterable[Example]) -> dict[str, int]:
    """How often each class occurs, the most frequent first."""
    counts: Counter[str] = Counter()
    for example in examples:
        counts.update(example.classes())
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def duplicate_share(train: Sequence[Example], dev: Sequence[Example]) -> float:
    """The share of `dev` whose content also stands in `train`: 1.0 if somebody evaluates on what was learnt."""
    seen = {example.input_texts() for example in train}
    return sum(example.input_texts() in seen for example in dev) / max(1, len(dev))
