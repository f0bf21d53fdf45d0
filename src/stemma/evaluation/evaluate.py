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
from stemma.json_files import parse
from stemma.model import Model
from stemma.task_config import TaskConfig
from stemma.tasks.data.checks import check_labels
from stemma.tasks.data.examples import Example
from stemma.tasks.data.file_reader import FileReader
from stemma.tasks.datasets import read_examples, task_kind_of
from stemma.tasks.kinds import head_task
from stemma.tasks.metrics import bootstrap_interval, check_metrics
from stemma.tasks.predict import predict_examples
from stemma.tasks.runs.compute_metrics import compute_metrics, gold_and_predicted
from stemma.text.text_io import STDIN

logger = logging.getLogger(__name__)

MAX_WORST_ERRORS = 20


@dataclass(frozen=True)
class EvalFile:
    """A file to be judged by, and how it is read: as `form` (a kind of task or a data set), or else as in training."""

    path: str | Path
    file_format: str | None = None
    columns: Mapping[str, str] | None = None
    encoding: str = "utf-8"
    errors: str = "strict"

    def read(self, task_config: TaskConfig) -> list[Example]:
        reading = FileReader(self.encoding, self.errors)
        form = self.file_format or task_config.values.dataset or self._kind(task_config.kind, reading)
        if task_kind_of(form) != task_config.kind and task_kind_of(form) not in head_task(task_config.kind).compatible_kinds:
            raise UserError(f"this model answers {task_config.kind}, and {form} is {task_kind_of(form)}; choose another --format.")
        return read_examples(form, self.path, columns=self.columns, encoding=self.encoding, errors=self.errors)

    def _kind(self, kind: str, reading: FileReader) -> str:
        """A foreign model does not say whether it judges pairs; the file does."""
        other = head_task(kind).pair_kind
        if other is None or self.columns or Path(self.path) == STDIN:
            return kind
        line = reading.first_line(self.path)
        try:
            names = set(parse(line)) if line.startswith("{") else set(re.split("[\t,]", line))
        except ValueError:
            return kind  # whoever reads the file says what is wrong with it
        return other[0] if {name.strip(' "').casefold() for name in names} & other[1] else kind


def evaluate(model: Model, task_config: TaskConfig, data: EvalFile,
             metrics: Sequence[str] = ()) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What `--json` prints, and each example with its prediction."""
    read, kind = data.read(task_config), head_task(task_config.kind)
    examples = kind.map_label_ids(task_config, [example for example in read if example.has_gold])
    if not examples:
        raise UserError(f"{data.path} does not say what is right, so nothing can be compared; `stemma predict` says "
                        "what the model makes of it.")
    if len(examples) < len(read):
        logger.warning(
            f"{len(read) - len(examples):,} of {len(read):,} examples do not say what is right; they are left out.")
    task_config = with_metrics(task_config, examples, metrics)
    if task_config.labels:
        check_labels(task_config.labels, examples, str(data.path))
    kind.check(examples, str(data.path))
    began = time.perf_counter()
    said = predict_examples(model, task_config, examples)
    seconds = time.perf_counter() - began
    gold, found, extras = gold_and_predicted(task_config, examples, said)
    result = {"task": task_config.name, "kind": task_config.kind, "data": str(data.path), "examples": len(examples),
              "metrics": {"test": compute_metrics(task_config, examples, said)},
              "intervals": {name: bootstrap_interval(task_config.kind, name, gold, found,
                                                     **extras) for name in task_config.metrics},
              **kind.breakdowns(task_config, gold, said, extras), "worst": most_confident_errors(task_config, examples,
                  said), "seconds": seconds,
              "examples_per_second": len(examples) / seconds}
    return result, [{"where": example.where, **example.preview(), "right": answer, "prediction": one}
                    for example, answer, one in zip(examples, gold, said, strict=True)]


def with_metrics(task_config: TaskConfig, examples: Sequence[Example], metrics: Sequence[str]) -> TaskConfig:
    """The card with what is to be measured: what was asked for, what it was trained by, or what is usual."""
    kind = head_task(task_config.kind)
    values = kind.complete_options(task_config.values, examples)
    chosen = tuple(metrics) or kind.suitable_metrics(task_config.metrics or kind.default_metrics, values)
    check_metrics(task_config.kind, chosen)
    return replace(task_config, metrics=chosen, values=values)


def most_confident_errors(task_config: TaskConfig, examples: Sequence[Example],
                          predicted: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    """The errors that the model was surest of; of numbers, those that are farthest off."""
    kind = head_task(task_config.kind)
    gold = [kind.gold(example) for example in examples]
    doubts = kind.error_confidences(task_config, gold, examples, predicted)
    order = sorted((number for number, doubt in enumerate(doubts) if doubt is not None),
                   key=lambda number: -(doubts[number] or 0.0))
    return [{"where": examples[number].where, **examples[number].preview(), "right": gold[number],
             "said": predicted[number][kind.prediction_key], "sure": doubts[number]}
            for number in order[:MAX_WORST_ERRORS]]

