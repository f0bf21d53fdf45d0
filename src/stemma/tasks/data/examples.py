"""What the readers make of any data set: four shapes of example, each of which knows the line it came from.

A label, answer or tag that is None is unknown, as in the test files that official servers keep the answers of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

KINDS = ("classify", "pair", "regress", "choice", "qa", "tag", "rank")


@dataclass(frozen=True, slots=True)
class TextExample:
    """One text or two, and what is said of them: a class, or a number where the task is regression."""

    where: str  # "train.tsv, line 3"
    texts: tuple[str, ...]
    label: str | float | None
    group: str | None = None  # the query whose candidates are ranked among each other
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """Several ways to go on, of which one is right; `label` is its place."""

    where: str
    context: str
    question: str  # may be empty
    options: tuple[str, ...]
    label: int | None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A stretch of the context: context[start:start + len(text)] is the text."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class QuestionExample:
    """A question about a paragraph; every answer is as good as the others."""

    where: str
    id: str
    context: str
    question: str
    answers: tuple[Answer, ...]
    impossible: bool | None  # the paragraph does not say; None: nobody has told us


@dataclass(frozen=True, slots=True)
class TaggedExample:
    """A sentence in words, and a tag for each of them."""

    where: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None


Example = TextExample | ChoiceExample | QuestionExample | TaggedExample


def content(example: Example) -> tuple[str, ...]:
    """What a model gets to read; two examples with the same content are the same question."""
    if isinstance(example, TextExample):
        return example.texts
    if isinstance(example, ChoiceExample):
        return (example.context, example.question, *example.options)
    if isinstance(example, QuestionExample):
        return example.context, example.question
    return example.words


def labels_of(examples: Iterable[Example]) -> list[str]:
    """Every class that occurs (of tagged words: every tag), numbers in their order and everything else by spelling."""
    found = set(balance(examples))
    try:
        return sorted(found, key=lambda label: (float(label), label))
    except ValueError:
        return sorted(found)


def balance(examples: Iterable[Example]) -> dict[str, int]:
    """How often each class occurs, the most frequent first. A question with an answer counts as "answerable"."""
    counts: Counter[str] = Counter()
    for example in examples:
        if isinstance(example, TaggedExample):
            counts.update(example.tags or ())
        elif isinstance(example, QuestionExample):
            if example.impossible is not None:
                counts["unanswerable" if example.impossible else "answerable"] += 1
        elif example.label is not None:
            counts[str(example.label)] += 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def overlap(train: Sequence[Example], dev: Sequence[Example]) -> float:
    """The share of `dev` whose content also stands in `train`: 1.0 if somebody evaluates on what was learnt."""
    seen = {content(example) for example in train}
    return sum(content(example) in seen for example in dev) / max(1, len(dev))
