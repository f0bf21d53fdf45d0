"""How good a fine-tuned model is on a file: its metrics and how sure they are, what it mistakes, its worst errors.

The worst errors are those that it was surest of: a wrong label there is often a wrong label of the data.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stemma.errors import UserError
from stemma.exchange.cards import Card
from stemma.exchange.model import Model
from stemma.json_files import parse
from stemma.tasks.data.checks import check_grades, check_labels
from stemma.tasks.data.columns import PAIR
from stemma.tasks.data.datasets import METRICS, kind_of, read_examples
from stemma.tasks.data.examples import ChoiceExample, Example, QuestionExample, TaggedExample, TextExample
from stemma.tasks.data.reading import Reading
from stemma.tasks.metrics import answer_table, bootstrap, check_metrics, confusion, entity_table
from stemma.tasks.metrics.answers import STYLES, style_of
from stemma.tasks.metrics.entities import scheme_of
from stemma.tasks.predicting import predictions
from stemma.tasks.scoring import FOUND, is_known, measure, right, right_and_said
from stemma.text.streams import STDIN

WORST = 20
LONGEST = 300  # characters of a text that is shown
Notice = Callable[[str], None]


@dataclass(frozen=True)
class Data:
    """A file to be judged by, and how it is read: as `form` (a kind of task or a data set), or else as in training."""

    path: str | Path
    form: str | None = None
    columns: Mapping[str, str] | None = None
    encoding: str = "utf-8"
    errors: str = "strict"

    def read(self, card: Card, notice: Notice) -> list[Example]:
        reading = Reading(self.encoding, self.errors, notice)
        form = self.form or card.values.get("dataset") or self._kind(card.kind, reading)
        if kind_of(form) != card.kind and {kind_of(form), card.kind} != {"classify", "pair"}:
            raise UserError(f"this model answers {card.kind}, and {form} is {kind_of(form)}; choose another --format.")
        return read_examples(form, self.path, columns=self.columns, encoding=self.encoding, errors=self.errors,
                             notice=notice)

    def _kind(self, kind: str, reading: Reading) -> str:
        """A foreign model does not say whether it judges pairs; the file does."""
        if kind != "classify" or self.columns or Path(self.path) == STDIN:
            return kind
        line = reading.first_line(self.path)
        try:
            names = set(parse(line)) if line.startswith("{") else set(re.split("[\t,]", line))
        except ValueError:
            return kind  # whoever reads the file says what is wrong with it
        return "pair" if {name.strip(' "').casefold() for name in names} & set(PAIR.texts[1]) else kind


def evaluate(model: Model, card: Card, data: Data, metrics: Sequence[str] = (),
             notice: Notice = lambda text: None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What `--json` prints, and each example with its prediction."""
    read = data.read(card, notice)
    examples = numbered(card, [example for example in read if is_known(example)], notice)
    if not examples:
        raise UserError(f"{data.path} does not say what is right, so nothing can be compared; `stemma predict` says "
                        "what the model makes of it.")
    if len(examples) < len(read):
        notice(f"{len(read) - len(examples):,} of {len(read):,} examples do not say what is right; they are left out.")
    card = measured_by(card, examples, metrics)
    if card.labels:
        check_labels(card.labels, examples, str(data.path))
    if card.kind == "rank":
        check_grades(examples, str(data.path))
    began = time.perf_counter()
    said = predictions(model, card, examples)
    seconds = time.perf_counter() - began
    gold, found, extras = right_and_said(card, examples, said)
    result = {"task": card.name, "kind": card.kind, "data": str(data.path), "examples": len(examples),
              "metrics": {"test": measure(card, examples, said)},
              "intervals": {name: bootstrap(card.kind, name, gold, found, **extras) for name in card.metrics},
              **tables(card, gold, said, extras), "worst": worst(card, examples, said), "seconds": seconds,
              "examples_per_second": len(examples) / seconds}
    return result, [{"where": example.where, **shown(example), "right": answer, "prediction": one}
                    for example, answer, one in zip(examples, gold, said, strict=True)]


def numbered(card: Card, examples: Sequence[Example], notice: Notice) -> list[Example]:
    """Labels that are the numbers of the model's classes, as in many files for models that others fine-tuned."""
    stated = {example.label for example in examples if isinstance(example, TextExample)}
    places = {str(number) for number in range(len(card.labels))}
    if card.kind not in ("classify", "pair") or not stated <= places or stated & set(card.labels):
        return list(examples)
    notice("the labels are taken for the numbers of the model's classes: "
           + ", ".join(f"{number} is {label}" for number, label in enumerate(card.labels)) + ".")
    return [replace(example, label=card.labels[int(str(example.label))]) for example in examples
            if isinstance(example, TextExample)]


def measured_by(card: Card, examples: Sequence[Example], metrics: Sequence[str]) -> Card:
    """The card with what is to be measured: what was asked for, what it was trained by, or what is usual."""
    chosen = tuple(metrics) or card.metrics or METRICS[card.kind]
    values = dict(card.values)
    if card.kind == "tag":
        values.setdefault("scheme", scheme_of([right("tag", example) for example in examples]))
        if values["scheme"] == "plain" and not metrics:
            chosen = ("accuracy",)
    check_metrics(card.kind, chosen)
    return replace(card, metrics=chosen, values=values)


def tables(card: Card, gold: Sequence[Any], said: Sequence[Mapping[str, Any]],
           extras: Mapping[str, Any]) -> dict[str, Any]:
    """What stands behind the numbers: what was taken for what, each type of entity, questions with and without an
    answer."""
    found = [one[FOUND[card.kind]] for one in said]
    if card.kind in ("classify", "pair"):
        return {"confusion": confusion(gold, found, card.labels)}
    if card.kind == "tag" and extras["scheme"] != "plain":
        return {"entities": entity_table(gold, found, **extras)}
    if card.kind == "tag":
        words, guesses = ([tag for tags in side for tag in tags] for side in (gold, found))
        return {"confusion": confusion(words, guesses, card.labels)}
    if card.kind == "qa":
        chances = {"no_answer": [one["no_answer"] for one in said]} if card.values.get("silence") else {}
        return {"answers": answer_table(gold, found, **extras, **chances)}
    return {}


def worst(card: Card, examples: Sequence[Example], said: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The errors that the model was surest of; of numbers, those that are farthest off."""
    gold = [right(card.kind, example) for example in examples]
    doubts = _doubts(card, gold, examples, said)
    order = sorted((number for number, doubt in enumerate(doubts) if doubt is not None),
                   key=lambda number: -(doubts[number] or 0.0))
    return [{"where": examples[number].where, **shown(examples[number]), "right": gold[number],
             "said": said[number][FOUND[card.kind]], "sure": doubts[number]} for number in order[:WORST]]


def _doubts(card: Card, gold: Sequence[Any], examples: Sequence[Example],
            said: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """How sure the model was where it is wrong; None where it is right."""
    if card.kind == "regress":
        return [abs(one["score"] - answer) or None for answer, one in zip(gold, said, strict=True)]
    if card.kind == "rank":
        return _misplaced(gold, examples, said)
    if card.kind == "qa":
        style = STYLES[card.values.get("style") or style_of(gold)]
        missed = [not style(one["answer"], answer)[0] for answer, one in zip(gold, said, strict=True)]
        sure = [one["no_answer"] if not one["answer"] else one["score"] * (1 - one["no_answer"]) for one in said]
        return [chance if wrong else None for wrong, chance in zip(missed, sure, strict=True)]
    if card.kind == "tag":
        wrong = [[chance for tag, other, chance in zip(answer, one["tags"], one["scores"], strict=True) if tag != other]
                 for answer, one in zip(gold, said, strict=True)]
        return [max(chances, default=None) for chances in wrong]
    return [one["scores"][one["label"]] if one["label"] != answer else None
            for answer, one in zip(gold, said, strict=True)]


def _misplaced(gold: Sequence[float], examples: Sequence[Example],
               said: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """Of a bad candidate that stands above a good one of its query: how far."""
    lowest: dict[str, float] = {}
    queries = [example.group or example.texts[0] for example in examples if isinstance(example, TextExample)]
    for query, grade, one in zip(queries, gold, said, strict=True):
        if grade >= 1:
            lowest[query] = min(lowest.get(query, one["score"]), one["score"])
    above = [one["score"] - lowest.get(query, one["score"]) if grade < 1 else 0.0
             for query, grade, one in zip(queries, gold, said, strict=True)]
    return [gap if gap > 0 else None for gap in above]


def shown(example: Example) -> dict[str, Any]:
    """An example as people read it, not too long."""
    if isinstance(example, TextExample):
        names = ("text",) if len(example.texts) == 1 else ("text_a", "text_b")
        return {name: _short(text) for name, text in zip(names, example.texts, strict=True)}
    if isinstance(example, ChoiceExample):
        return {"context": _short(example.context), "question": _short(example.question),
                "options": [_short(option) for option in example.options]}
    if isinstance(example, QuestionExample):
        return {"question": _short(example.question), "context": _short(example.context)}
    assert isinstance(example, TaggedExample)
    return {"words": list(example.words)}


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
