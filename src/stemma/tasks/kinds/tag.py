"""A tag for each word: entities, parts of speech."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stemma.registry import register
from stemma.schema.task_values import TaskValues
from stemma.tasks.data.examples import Example, TaggedExample
from stemma.tasks.data.reading import Reading
from stemma.tasks.data.tags import as_iob2, read_tagged
from stemma.tasks.kinds.base import Asked, Columns, HeadTask, ReportTable, Said, Span
from stemma.tasks.kinds.texts import balance_of, confusion_table, counts_of
from stemma.tasks.metrics import entities
from stemma.tasks.metrics.entities import entity_table, scheme_of
from stemma.tasks.metrics.labels import confusion

if TYPE_CHECKING:
    from stemma.exchange.cards import Card
    from stemma.network.heads import HeadSpec
    from stemma.schema.finetuning import FinetuningSettings
    from stemma.tasks.data.datasets import Dataset
    from stemma.tasks.layout import RowLayout
    from stemma.tasks.learner import Learner

CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
WORD = re.compile(rf"[{CJK}]|[^\W{CJK}]+|[^\w\s]")  # a Chinese character, a run of letters and digits, or a mark
BILOU = {"L": "E", "U": "S"}  # the letters of BIOES that mean the same
PLAIN = "plain"  # tags that mark no entities


class TagValues(TaskValues):
    scheme: str | None = None  # of the training tags: a few sentences may not show it


@register("task", "tag", TagValues)
class Tag(HeadTask):
    idea = "A tag for each word."
    example = TaggedExample
    metrics = entities.METRICS
    usual = ("f1", "precision", "recall")
    answer = "tags"
    has_classes = True
    features = "token"
    plain_text = True

    def prepare(self, gold: Sequence[Any], predicted: Sequence[Any], **extras: Any) -> Any:
        return entities.prepare(gold, predicted, **extras)

    def read(self, path: str | Path, columns: Columns, reading: Reading) -> Sequence[Example]:
        return read_tagged(path, columns, reading)

    def ask_line(self, where: str, number: int, line: str) -> Asked:
        found = list(WORD.finditer(line))
        example = TaggedExample(where, tuple(word[0] for word in found) or (line,), None)
        return Asked(example, {"line": number, "text": line}, [word.span() for word in found] or [(0, len(line))])

    def asked(self, example: Example, **told: Any) -> Asked:
        spans: list[Span] = []
        begin = 0
        for word in example.content():
            spans.append((begin, begin + len(word)))
            begin += len(word) + 1
        return Asked(example, told | example.told(), spans)

    def values(self, train: Sequence[Example], dataset: Dataset | None, settings: FinetuningSettings) -> dict[str, Any]:
        return {"scheme": scheme_of([self.gold(example) for example in train])}

    def completed(self, values: TaskValues, examples: Sequence[Example]) -> TaskValues:
        if "scheme" in values.model_fields_set:
            return values
        return values.model_copy(update={"scheme": scheme_of([self.gold(example) for example in examples])})

    def suited(self, metrics: tuple[str, ...], values: TaskValues) -> tuple[str, ...]:
        """Of parts of speech and the like, where there are no entities to find."""
        assert isinstance(values, TagValues)
        return ("accuracy",) if values.scheme == PLAIN else metrics

    def heads(self, name: str, classes: int, dropout: float) -> dict[str, HeadSpec]:
        from stemma.network.heads import ClassHead

        return {name: ClassHead(classes, dropout)}

    def learner(self, card: Card, layout: RowLayout, seed: int) -> Learner:
        from stemma.tasks.tagging import TagLearner

        return TagLearner(card.name, layout, dict(card.heads), card.labels, counts_of(card), balance_of(card))

    def gold(self, example: Example) -> list[str]:
        assert isinstance(example, TaggedExample)
        return list(example.tags or ())

    def extras(self, card: Card, examples: Sequence[Example]) -> dict[str, Any]:
        assert isinstance(card.values, TagValues)
        return {"scheme": card.values.scheme}

    def rendered(self, asked: Asked, said: Said) -> dict[str, Any]:
        return {"entities": found_entities(said, asked.told["text"], asked.words)}

    def tables(self, card: Card, gold: Sequence[Any], said: Sequence[Said],
               extras: Mapping[str, Any]) -> dict[str, Any]:
        found = [one["tags"] for one in said]
        if extras["scheme"] != PLAIN:
            return {"entities": entity_table(gold, found, **extras)}
        words, guesses = ([tag for tags in side for tag in tags] for side in (gold, found))
        return {"confusion": confusion(words, guesses, card.labels)}

    def report(self, result: Mapping[str, Any]) -> list[ReportTable]:
        if "confusion" in result:
            return [confusion_table(result["confusion"])]
        rows = [[name, *(float(row[key]) for key in ("precision", "recall", "f1")), int(row["support"])]
                for name, row in result["entities"].items()]
        return [ReportTable("Each type of entity", ["type", "precision", "recall", "F1", "in the data"], rows,
                            short=("entity", "precision", "recall", "f1", "in the data"))]

    def confidences(self, card: Card, gold: Sequence[Any], examples: Sequence[Example],
                    said: Sequence[Said]) -> list[float | None]:
        wrong = [[chance for tag, other, chance in zip(answer, one["tags"], one["scores"], strict=True) if tag != other]
                 for answer, one in zip(gold, said, strict=True)]
        return [max(chances, default=None) for chances in wrong]


def found_entities(said: Said, text: str, words: Sequence[Span]) -> list[dict[str, Any]]:
    """What the tags mark, with the characters of the text where it stands; tags without prefixes mark nothing."""
    tags = [BILOU.get(tag[0], tag[0]) + tag[1:] for tag in said["tags"]]
    if any(tag != "O" and tag[1:2] != "-" for tag in tags):
        return []
    runs: list[list[int]] = []
    for number, tag in enumerate(as_iob2(tags, "IOB2")):
        if tag[0] == "B":
            runs.append([])
        if tag != "O":
            runs[-1].append(number)
    return [{"type": tags[run[0]][2:], "text": text[words[run[0]][0]:words[run[-1]][1]], "start": words[run[0]][0],
             "end": words[run[-1]][1], "score": float(np.mean([said["scores"][number] for number in run]))}
            for run in runs]
