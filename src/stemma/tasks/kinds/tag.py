"""Token classification: a tag for each word (named entities, parts of speech)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stemma.registry import register
from stemma.schema.task_options import TaskOptions
from stemma.tasks.data.conll import read_conll, to_iob2
from stemma.tasks.data.examples import Example, TaggedExample
from stemma.tasks.data.file_reader import FileReader
from stemma.tasks.kinds.base import CharSpan, Columns, HeadTask, PredictInput, Prediction, ReportTable
from stemma.tasks.kinds.texts import class_counts, class_weights_of, confusion_table
from stemma.tasks.metrics import ner
from stemma.tasks.metrics.classification import confusion
from stemma.tasks.metrics.ner import detect_scheme, entity_table

if TYPE_CHECKING:
    from stemma.network.heads import HeadSpec
    from stemma.schema.finetuning import FinetuningSettings
    from stemma.task_config import TaskConfig
    from stemma.tasks.datasets import Dataset
    from stemma.tasks.objectives.base import TaskObjective
    from stemma.tasks.objectives.input_encoder import InputEncoder

CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
WORD = re.compile(rf"[{CJK}]|[^\W{CJK}]+|[^\w\s]")  # a Chinese character, letters and digits, or punctuation
BILOU = {"L": "E", "U": "S"}  # equivalent BIOES prefixes
NO_SCHEME = "plain"  # tags without prefixes, such as parts of speech


class TokenClassificationOptions(TaskOptions):
    scheme: str | None = None  # of the training tags; a small evaluation set may not reveal it


@register("task", "tag", TokenClassificationOptions)
class TokenClassificationTask(HeadTask):
    description = "A tag for each word."
    example_type = TaggedExample
    metrics = ner.METRICS
    default_metrics = ("f1", "precision", "recall")
    prediction_key = "tags"
    has_classes = True
    feature_level = "token"
    supports_crf = True
    accepts_lines = True

    def metric_inputs(self, gold: Sequence[Any], predicted: Sequence[Any], **metric_options: Any) -> Any:
        return ner.metric_inputs(gold, predicted, **metric_options)

    def read(self, path: str | Path, columns: Columns, reader: FileReader) -> Sequence[Example]:
        return read_conll(path, columns, reader)

    def input_from_line(self, where: str, line_number: int, line: str) -> PredictInput:
        matches = list(WORD.finditer(line))
        example = TaggedExample(where, tuple(match[0] for match in matches) or (line,), None)
        return PredictInput(example, {"line": line_number, "text": line},
                            [match.span() for match in matches] or [(0, len(line))])

    def to_input(self, example: Example, **echo: Any) -> PredictInput:
        spans: list[CharSpan] = []
        start = 0
        for word in example.input_texts():
            spans.append((start, start + len(word)))
            start += len(word) + 1
        return PredictInput(example, echo | example.echo(), spans)

    def infer_options(self, train: Sequence[Example], dataset: Dataset | None,
                      settings: FinetuningSettings) -> dict[str, Any]:
        return {"scheme": detect_scheme([self.gold(example) for example in train])}

    def complete_options(self, options: TaskOptions, examples: Sequence[Example]) -> TaskOptions:
        if "scheme" in options.model_fields_set:
            return options
        return options.model_copy(update={"scheme": detect_scheme([self.gold(example) for example in examples])})

    def suitable_metrics(self, metrics: tuple[str, ...], options: TaskOptions) -> tuple[str, ...]:
        """Accuracy for tags without entities, such as parts of speech."""
        assert isinstance(options, TokenClassificationOptions)
        return ("accuracy",) if options.scheme == NO_SCHEME else metrics

    def heads(self, name: str, classes: int, dropout: float) -> dict[str, HeadSpec]:
        from stemma.network.heads import ClassHead

        return {name: ClassHead(classes, dropout)}

    def objective(self, task_config: TaskConfig, input_encoder: InputEncoder, seed: int) -> TaskObjective:
        from stemma.tasks.objectives.crf_tagging import CRFTaggingObjective, crf_head_name
        from stemma.tasks.objectives.token_classification import TokenClassificationObjective

        has_crf = crf_head_name(task_config.name) in task_config.heads
        objective = CRFTaggingObjective if has_crf else TokenClassificationObjective
        return objective(task_config.name, input_encoder, dict(task_config.heads), task_config.labels,
                         class_counts(task_config), class_weights_of(task_config))

    def gold(self, example: Example) -> list[str]:
        assert isinstance(example, TaggedExample)
        return list(example.tags or ())

    def metric_options(self, task_config: TaskConfig, examples: Sequence[Example]) -> dict[str, Any]:
        assert isinstance(task_config.values, TokenClassificationOptions)
        return {"scheme": task_config.values.scheme}

    def render(self, predict_input: PredictInput, predicted: Prediction) -> dict[str, Any]:
        return {"entities": extract_entities(predicted, predict_input.echo["text"], predict_input.word_offsets)}

    def breakdowns(self, task_config: TaskConfig, gold: Sequence[Any], predicted: Sequence[Prediction],
                   metric_options: Mapping[str, Any]) -> dict[str, Any]:
        predicted_tags = [prediction["tags"] for prediction in predicted]
        if metric_options["scheme"] != NO_SCHEME:
            return {"entities": entity_table(gold, predicted_tags, **metric_options)}
        flat_gold, flat_predicted = ([tag for tags in side for tag in tags] for side in (gold, predicted_tags))
        return {"confusion": confusion(flat_gold, flat_predicted, task_config.labels)}

    def report_tables(self, result: Mapping[str, Any]) -> list[ReportTable]:
        if "confusion" in result:
            return [confusion_table(result["confusion"])]
        rows = [[name, *(float(row[key]) for key in ("precision", "recall", "f1")), int(row["support"])]
                for name, row in result["entities"].items()]
        return [ReportTable("Entity types", ["type", "precision", "recall", "F1", "support"], rows,
                            terminal_columns=("entity", "precision", "recall", "f1", "support"))]

    def error_confidences(self, task_config: TaskConfig, gold: Sequence[Any], examples: Sequence[Example],
                          predicted: Sequence[Prediction]) -> list[float | None]:
        wrong = [[score for gold_tag, tag, score in zip(tags, prediction["tags"], prediction["scores"], strict=True)
                  if gold_tag != tag] for tags, prediction in zip(gold, predicted, strict=True)]
        return [max(scores, default=None) for scores in wrong]


def extract_entities(predicted: Prediction, text: str, word_offsets: Sequence[CharSpan]) -> list[dict[str, Any]]:
    """The entities that the tags mark, with character offsets; none if the tags have no prefixes."""
    tags = [BILOU.get(tag[0], tag[0]) + tag[1:] for tag in predicted["tags"]]
    if any(tag != "O" and tag[1:2] != "-" for tag in tags):
        return []
    entities: list[list[int]] = []  # word indices
    for index, tag in enumerate(to_iob2(tags, "IOB2")):
        if tag[0] == "B":
            entities.append([])
        if tag != "O":
            entities[-1].append(index)
    rows = []
    for words in entities:
        start, end = word_offsets[words[0]][0], word_offsets[words[-1]][1]
        rows.append({"type": tags[words[0]][2:], "text": text[start:end], "start": start, "end": end,
                     "score": float(np.mean([predicted["scores"][index] for index in words]))})
    return rows
