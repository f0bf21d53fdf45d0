"""What a fine-tuned model answers, as plain data beside its weights: one card a task.

Hugging Face keeps the labels of one task in config.json. A model here may answer several tasks and must know more: how
long its inputs were, by which templates they were laid out, which head answers. All of it stands in `tasks.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from stemma import registry
from stemma.corpus.sides import ENCODER
from stemma.json_files import damage, read_object
from stemma.network.heads import HeadSpec
from stemma.schema.task_values import TaskValues, values_of

FILE = "tasks.json"
ALONE = "task"  # the name of a task that is the only one of its model


@dataclass(frozen=True)
class Card:
    name: str  # of the task, and of the head that answers it
    kind: str  # a registered kind of task
    labels: tuple[str, ...]  # the classes in order; empty where answers are no classes
    heads: Mapping[str, HeadSpec]
    single: str  # the templates by which inputs are laid out
    pair: str
    longest: int  # places of a row
    metrics: tuple[str, ...]  # the first one decides
    values: TaskValues  # what else its learner must know: the settings of its kind
    more: tuple[str, ...] = ()  # templates of three texts, of four, ..., where its kind has as many

    def to_json(self) -> dict[str, Any]:
        specs = {name: {"kind": type(spec).__name__, **vars(spec)} for name, spec in self.heads.items()}
        told = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "more" or self.more}
        return {**told, "heads": specs, "values": self.values.to_json()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Card:
        specs = {name: registry.get("head", told["kind"]).build(**{key: value for key, value in told.items()
                                                                   if key != "kind"})
                 for name, told in stored["heads"].items()}
        known = {item.name: stored[item.name] for item in fields(cls) if item.name != "more"}
        lists = {key: tuple(stored.get(key, ()) if key == "more" else stored[key])
                 for key in ("labels", "metrics", "more")}
        return cls(**{**known, **lists, "heads": specs, "values": values_of(stored["kind"], stored["values"])})


def parts_of(cards: Iterable[Card]) -> list[registry.Registered]:
    """The registered parts that these tasks need: their kinds, and the heads that answer."""
    found = []
    for card in cards:
        heads = (registry.find("head", type(spec).__name__) for spec in card.heads.values())
        found += [registry.get("task", card.kind), *(head for head in heads if head is not None)]
    return found


def stack_of(card: Card) -> str:
    """The stack whose output the head reads."""
    return card.values.stack or ENCODER


def write_cards(folder: Path, cards: Mapping[str, Card]) -> None:
    stored = {name: card.to_json() for name, card in cards.items()}
    (folder / FILE).write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_cards(folder: Path) -> dict[str, Card]:
    """The cards of a model; none where it was never fine-tuned."""
    file = folder / FILE
    if not file.is_file():
        return {}
    advice = "save the model again from its run."
    with damage(file, advice):
        return {name: Card.from_json(card) for name, card in read_object(file, advice).items()}
