"""Base classes of the kinds whose examples are one or two texts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemma.errors import UserError
from stemma.tasks.data.examples import Example, TextExample
from stemma.tasks.data.file_reader import FileReader
from stemma.tasks.data.text_tables import read_user_table
from stemma.tasks.kinds.base import Columns, HeadTask, Prediction, ReportTable
from stemma.tasks.metrics import classification
from stemma.tasks.metrics.classification import confusion

if TYPE_CHECKING:
    from stemma.task_config import TaskConfig
    from stemma.tasks.objectives.base import TaskObjective
    from stemma.tasks.objectives.input_encoder import InputEncoder

logger = logging.getLogger(__name__)

MAX_CLASSES = 30  # a larger confusion matrix is unreadable
MAX_TERMINAL_CLASSES = 12


class TextTask(HeadTask):
    """`allows_single` and `allows_pair` state whether a row may hold one text, two, or either."""

    example_type = TextExample
    hf_kind = "classify"
    accepts_lines = True
    supports_gpt_format = True
    allows_single = True
    allows_pair = False
    grouped = False  # rows belong to queries
    numeric = False  # the label is a number

    def read(self, path: str | Path, columns: Columns, reader: FileReader) -> Sequence[Example]:
        return read_user_table(path, columns, reader, single=self.allows_single, pair=self.allows_pair,
                               grouped=self.grouped, numeric_label=self.numeric)

    def example_from_line(self, where: str, line: str) -> TextExample:
        is_pair = self.allows_pair and (not self.allows_single or "\t" in line)
        texts = tuple(text.strip() for text in line.split("\t")) if is_pair else (line,)
        if is_pair and (len(texts) != 2 or not all(texts)):
            raise UserError(f"{where} should hold two texts with a tab between them; correct it, or give JSON lines "
                            "with text_a and text_b.")
        return TextExample(where, texts, None)


class ClassificationTask(TextTask):
    """Predicts one of several classes."""

    metrics = classification.METRICS
    default_metrics = ("accuracy", "macro_f1")
    prediction_key = "label"
    has_classes = True
    per_example = True
    linear_baseline = "logistic"
    feature_level = "text"

    def metric_inputs(self, gold: Sequence[Any], predicted: Sequence[Any], **metric_options: Any) -> Any:
        return classification.metric_inputs(gold, predicted, **metric_options)

    def objective(self, task_config: TaskConfig, input_encoder: InputEncoder, seed: int) -> TaskObjective:
        from stemma.network.san_head import SanHead
        from stemma.tasks.objectives.san_pair import SanPairObjective
        from stemma.tasks.objectives.sequence import ClassificationObjective

        has_san_head = isinstance(task_config.heads[task_config.name], SanHead)
        objective = SanPairObjective if has_san_head else ClassificationObjective
        return objective(task_config.name, input_encoder, dict(task_config.heads), task_config.labels,
                         class_counts(task_config), class_weights_of(task_config))

    def gold(self, example: Example) -> str:
        assert isinstance(example, TextExample)
        return str(example.label)

    def map_label_ids(self, task_config: TaskConfig, examples: Sequence[Example]) -> Sequence[Example]:
        """Many files for imported models label rows with class ids."""
        text_examples = [example for example in examples if isinstance(example, TextExample)]
        labels = {example.label for example in text_examples}
        class_ids = {str(index) for index in range(len(task_config.labels))}
        if not labels <= class_ids or labels & set(task_config.labels):
            return examples
        logger.info("the labels are read as class ids of the model: "
                    + ", ".join(f"{index} is {label}" for index, label in enumerate(task_config.labels)) + ".")
        return [replace(example, label=task_config.labels[int(str(example.label))]) for example in text_examples]

    def metric_options(self, task_config: TaskConfig, examples: Sequence[Example]) -> dict[str, Any]:
        return {"labels": list(task_config.labels)}

    def breakdowns(self, task_config: TaskConfig, gold: Sequence[Any], predicted: Sequence[Prediction],
                   metric_options: Mapping[str, Any]) -> dict[str, Any]:
        predicted_labels = [prediction[self.prediction_key] for prediction in predicted]
        return {"confusion": confusion(gold, predicted_labels, task_config.labels)}

    def report_tables(self, result: Mapping[str, Any]) -> list[ReportTable]:
        return [confusion_table(result["confusion"])]

    def error_confidences(self, task_config: TaskConfig, gold: Sequence[Any], examples: Sequence[Example],
                          predicted: Sequence[Prediction]) -> list[float | None]:
        return error_scores(gold, predicted)


def class_counts(task_config: TaskConfig) -> list[int]:
    """Counts of the classes in the training set; zeros if unknown."""
    return task_config.values.counts or [0] * len(task_config.labels)


def class_weights_of(task_config: TaskConfig) -> list[float] | None:
    """The loss weight of each class; None: no weighting."""
    assert not isinstance(task_config.values.balance, str), "a task config stores numbers, not `balanced`"
    return task_config.values.balance


def error_scores(gold: Sequence[Any], predicted: Sequence[Prediction]) -> list[float | None]:
    """The score of the predicted label if it is wrong, else None."""
    return [prediction["scores"][prediction["label"]] if prediction["label"] != label else None
            for label, prediction in zip(gold, predicted, strict=True)]


def confusion_table(confusion: Mapping[str, Any]) -> ReportTable:
    title, labels, counts = "Confusion matrix", confusion["labels"], confusion["counts"]
    if len(labels) <= MAX_CLASSES:
        rows = [[label, *row] for label, row in zip(labels, counts, strict=True)]
        return ReportTable(title, ["gold / predicted", *labels], rows, "Rows are gold labels, columns are predicted "
                           "labels.", fits_terminal=len(labels) <= MAX_TERMINAL_CLASSES)
    errors = sorted(((count, labels[a], labels[b]) for a, row in enumerate(counts) for b, count in enumerate(row)
                     if a != b and count), reverse=True)
    return ReportTable(title, ["gold", "predicted", "count"], [[a, b, count] for count, a, b in errors[:MAX_CLASSES]],
                       f"The most frequent errors among {len(labels)} classes.", fits_terminal=False)
