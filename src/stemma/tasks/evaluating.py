"""How good a fine-tuned model is on a file: its metrics and how sure they are, what it mistakes, its worst errors.

The worst errors are those that it was surest of: a wrong label there is often a wrong label of the data.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stemma.errors import UserError
from stemma.exchange.cards import Card
from stemma.exchange.model import Model
from stemma.json_files import parse
from stemma.tasks.data.checks import check_labels
from stemma.tasks.data.datasets import kind_of, read_examples
from stemma.tasks.data.examples import Example
from stemma.tasks.data.reading import Reading
from stemma.tasks.kinds import head_task
from stemma.tasks.metrics import bootstrap, check_metrics
from stemma.tasks.predicting import predictions
from stemma.tasks.scoring import measure, right_and_said
from stemma.text.streams import STDIN

logger = logging.getLogger(__name__)

WORST = 20


@dataclass(frozen=True)
class Data:
    """A file to be judged by, and how it is read: as `form` (a kind of task or a data set), or else as in training."""

    path: str | Path
    form: str | None = None
    columns: Mapping[str, str] | None = None
    encoding: str = "utf-8"
    errors: str = "strict"

    def read(self, card: Card) -> list[Example]:
        reading = Reading(self.encoding, self.errors)
        form = self.form or card.values.dataset or self._kind(card.kind, reading)
        if kind_of(form) != card.kind and kind_of(form) not in head_task(card.kind).alike:
            raise UserError(f"this model answers {card.kind}, and {form} is {kind_of(form)}; choose another --format.")
        return read_examples(form, self.path, columns=self.columns, encoding=self.encoding, errors=self.errors)

    def _kind(self, kind: str, reading: Reading) -> str:
        """A foreign model does not say whether it judges pairs; the file does."""
        other = head_task(kind).paired_kind
        if other is None or self.columns or Path(self.path) == STDIN:
            return kind
        line = reading.first_line(self.path)
        try:
            names = set(parse(line)) if line.startswith("{") else set(re.split("[\t,]", line))
        except ValueError:
            return kind  # whoever reads the file says what is wrong with it
        return other[0] if {name.strip(' "').casefold() for name in names} & other[1] else kind


def evaluate(model: Model, card: Card, data: Data,
             metrics: Sequence[str] = ()) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What `--json` prints, and each example with its prediction."""
    read, kind = data.read(card), head_task(card.kind)
    examples = kind.numbered(card, [example for example in read if example.is_known])
    if not examples:
        raise UserError(f"{data.path} does not say what is right, so nothing can be compared; `stemma predict` says "
                        "what the model makes of it.")
    if len(examples) < len(read):
        logger.warning(
            f"{len(read) - len(examples):,} of {len(read):,} examples do not say what is right; they are left out.")
    card = measured_by(card, examples, metrics)
    if card.labels:
        check_labels(card.labels, examples, str(data.path))
    kind.check(examples, str(data.path))
    began = time.perf_counter()
    said = predictions(model, card, examples)
    seconds = time.perf_counter() - began
    gold, found, extras = right_and_said(card, examples, said)
    result = {"task": card.name, "kind": card.kind, "data": str(data.path), "examples": len(examples),
              "metrics": {"test": measure(card, examples, said)},
              "intervals": {name: bootstrap(card.kind, name, gold, found, **extras) for name in card.metrics},
              **kind.tables(card, gold, said, extras), "worst": worst(card, examples, said), "seconds": seconds,
              "examples_per_second": len(examples) / seconds}
    return result, [{"where": example.where, **example.shown(), "right": answer, "prediction": one}
                    for example, answer, one in zip(examples, gold, said, strict=True)]


def measured_by(card: Card, examples: Sequence[Example], metrics: Sequence[str]) -> Card:
    """The card with what is to be measured: what was asked for, what it was trained by, or what is usual."""
    kind = head_task(card.kind)
    values = kind.completed(card.values, examples)
    chosen = tuple(metrics) or kind.suited(card.metrics or kind.usual, values)
    check_metrics(card.kind, chosen)
    return replace(card, metrics=chosen, values=values)


def worst(card: Card, examples: Sequence[Example], said: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    """The errors that the model was surest of; of numbers, those that are farthest off."""
    kind = head_task(card.kind)
    gold = [kind.gold(example) for example in examples]
    doubts = kind.confidences(card, gold, examples, said)
    order = sorted((number for number, doubt in enumerate(doubts) if doubt is not None),
                   key=lambda number: -(doubts[number] or 0.0))
    return [{"where": examples[number].where, **examples[number].shown(), "right": gold[number],
             "said": said[number][kind.answer], "sure": doubts[number]} for number in order[:WORST]]

