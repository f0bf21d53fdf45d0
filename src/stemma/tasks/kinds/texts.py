"""What kinds of one text or two have in common: tables with named columns, classes, and a line for each text."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemma.errors import UserError
from stemma.tasks.data.columns import read_plain
from stemma.tasks.data.examples import Example, TextExample
from stemma.tasks.data.reading import Reading
from stemma.tasks.kinds.base import Columns, HeadTask, ReportTable, Said
from stemma.tasks.metrics import labels
from stemma.tasks.metrics.labels import confusion

if TYPE_CHECKING:
    from stemma.exchange.cards import Card
    from stemma.tasks.layout import RowLayout
    from stemma.tasks.learner import Learner

logger = logging.getLogger(__name__)

MOST_CLASSES = 30  # of a confusion matrix that can still be read
MOST_ON_TERMINAL = 12


class TextTask(HeadTask):
    """`one_text` and `two_texts` say which a row of a table may hold."""

    example = TextExample
    served_as = "classify"
    plain_text = True
    in_gpt_style = True
    one_text = True
    two_texts = False
    grouped = False  # rows belong to queries
    numeric = False  # the label is a number

    def read(self, path: str | Path, columns: Columns, reading: Reading) -> Sequence[Example]:
        return read_plain(path, columns, reading, one=self.one_text, two=self.two_texts, grouped=self.grouped,
                          number=self.numeric)

    def example_of_line(self, where: str, line: str) -> TextExample:
        two = self.two_texts and (not self.one_text or "\t" in line)
        texts = tuple(text.strip() for text in line.split("\t")) if two else (line,)
        if two and (len(texts) != 2 or not all(texts)):
            raise UserError(f"{where} should hold two texts with a tab between them; correct it, or give JSON lines "
                            "with text_a and text_b.")
        return TextExample(where, texts, None)


class ClassTask(TextTask):
    """One of several classes."""

    metrics = labels.METRICS
    usual = ("accuracy", "macro_f1")
    answer = "label"
    has_classes = True
    one_by_one = True
    features = "text"

    def prepare(self, gold: Sequence[Any], predicted: Sequence[Any], **extras: Any) -> Any:
        return labels.prepare(gold, predicted, **extras)

    def learner(self, card: Card, layout: RowLayout, seed: int) -> Learner:
        from stemma.network.san import SanHead
        from stemma.tasks.pairs import PairLearner
        from stemma.tasks.sentences import ClassLearner

        learner = PairLearner if isinstance(card.heads[card.name], SanHead) else ClassLearner
        return learner(card.name, layout, dict(card.heads), card.labels, counts_of(card), balance_of(card))

    def gold(self, example: Example) -> str:
        assert isinstance(example, TextExample)
        return str(example.label)

    def numbered(self, card: Card, examples: Sequence[Example]) -> Sequence[Example]:
        """As in many files for models that others fine-tuned."""
        told = [example for example in examples if isinstance(example, TextExample)]
        stated = {example.label for example in told}
        numbers = {str(number) for number in range(len(card.labels))}
        if not stated <= numbers or stated & set(card.labels):
            return examples
        logger.info("the labels are taken for the numbers of the model's classes: "
                    + ", ".join(f"{number} is {label}" for number, label in enumerate(card.labels)) + ".")
        return [replace(example, label=card.labels[int(str(example.label))]) for example in told]

    def extras(self, card: Card, examples: Sequence[Example]) -> dict[str, Any]:
        return {"labels": list(card.labels)}

    def tables(self, card: Card, gold: Sequence[Any], said: Sequence[Said],
               extras: Mapping[str, Any]) -> dict[str, Any]:
        return {"confusion": confusion(gold, [one[self.answer] for one in said], card.labels)}

    def report(self, result: Mapping[str, Any]) -> list[ReportTable]:
        return [confusion_table(result["confusion"])]

    def confidences(self, card: Card, gold: Sequence[Any], examples: Sequence[Example],
                    said: Sequence[Said]) -> list[float | None]:
        return wrong_scores(gold, said)


def counts_of(card: Card) -> list[int]:
    """How often each class occurs in the training set, as far as it is known."""
    return card.values.counts or [0] * len(card.labels)


def balance_of(card: Card) -> list[float] | None:
    """The weight of each class; None: all weigh alike."""
    assert not isinstance(card.values.balance, str), "a card has numbers, whatever the plan said"
    return card.values.balance


def wrong_scores(gold: Sequence[Any], said: Sequence[Said]) -> list[float | None]:
    """The score of the label that was predicted, where it is wrong."""
    return [one["scores"][one["label"]] if one["label"] != answer else None
            for answer, one in zip(gold, said, strict=True)]


def confusion_table(confusion: Mapping[str, Any]) -> ReportTable:
    title, labels, counts = "What was taken for what", confusion["labels"], confusion["counts"]
    if len(labels) <= MOST_CLASSES:
        rows = [[label, *row] for label, row in zip(labels, counts, strict=True)]
        return ReportTable(title, ["right \\ said", *labels], rows, "A row for what is right, a column for what was "
                           "said.", fits_terminal=len(labels) <= MOST_ON_TERMINAL)
    mistaken = sorted(((count, labels[a], labels[b]) for a, row in enumerate(counts) for b, count in enumerate(row)
                       if a != b and count), reverse=True)
    return ReportTable(title, ["right", "said", "times"], [[a, b, count] for count, a, b in mistaken[:MOST_CLASSES]],
                       f"The most frequent mistakes among {len(labels)} classes.", fits_terminal=False)
