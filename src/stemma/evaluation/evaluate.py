"""Evaluation of a fine-tuned model on a file: metrics with intervals, breakdowns, and the most confident errors.

An error with high confidence is often an error in the data.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stemma.checksummed_files import has_checksum
from stemma.errors import CorruptFileError, UserError
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
from stemma.tasks.runs.baseline_scores import baseline_scores, report_below
from stemma.tasks.runs.compute_metrics import compute_metrics, gold_and_predicted
from stemma.tasks.runs.finetune_run import read_split, split_file
from stemma.text.text_io import STDIN

logger = logging.getLogger(__name__)

MAX_WORST_ERRORS = 20


@dataclass(frozen=True)
class EvalFile:
    """A file with gold answers. `file_format` is a kind of task or a data set; None: the same as in training."""

    path: str | Path
    file_format: str | None = None
    columns: Mapping[str, str] | None = None
    encoding: str = "utf-8"
    errors: str = "strict"

    def read(self, task_config: TaskConfig) -> list[Example]:
        reader = FileReader(self.encoding, self.errors)
        file_format = self.file_format or task_config.values.dataset or self._kind(task_config.kind, reader)
        file_kind = task_kind_of(file_format)
        if file_kind != task_config.kind and file_kind not in head_task(task_config.kind).compatible_kinds:
            raise UserError(f"this model answers {task_config.kind}, and {file_format} is {file_kind}; choose another "
                            "--format.")
        return read_examples(file_format, self.path, columns=self.columns, encoding=self.encoding, errors=self.errors)

    def _kind(self, kind: str, reader: FileReader) -> str:
        """The kind of task. The config of a Hugging Face model does not say whether its inputs are pairs; the columns
        of the file do."""
        pair_kind = head_task(kind).pair_kind
        if pair_kind is None or self.columns or Path(self.path) == STDIN:
            return kind
        line = reader.first_line(self.path)
        try:
            names = set(parse(line)) if line.startswith("{") else set(re.split("[\t,]", line))
        except ValueError:
            return kind  # reading the examples reports what is wrong with the file
        return pair_kind[0] if {name.strip(' "').casefold() for name in names} & pair_kind[1] else kind


def evaluate(model: Model, task_config: TaskConfig, data: EvalFile,
             metrics: Sequence[str] = (), run: Path | None = None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result that `--json` prints, and each example with its prediction. With `run`, the folder of the fine-tuning,
    the linear baseline is fitted again to its training examples: that is faster than loading a stored one."""
    all_examples, kind = data.read(task_config), head_task(task_config.kind)
    examples = kind.map_label_ids(task_config, [example for example in all_examples if example.has_gold])
    if not examples:
        raise UserError(f"{data.path} has no gold answers, so there is nothing to compare with; `stemma predict` "
                        "prints the model's predictions.")
    if len(examples) < len(all_examples):
        logger.warning(
            f"{len(all_examples) - len(examples):,} of {len(all_examples):,} examples have no gold answer; they are "
            "left out.")
    task_config = with_metrics(task_config, examples, metrics)
    if task_config.labels:
        check_labels(task_config.labels, examples, str(data.path))
    kind.check(examples, str(data.path))
    start_time = time.perf_counter()
    predictions = predict_examples(model, task_config, examples)
    seconds = time.perf_counter() - start_time
    gold, predicted, metric_options = gold_and_predicted(task_config, examples, predictions)
    result: dict[str, Any] = {
        "task": task_config.name, "kind": task_config.kind, "data": str(data.path), "examples": len(examples),
        "metrics": {"test": compute_metrics(task_config, examples, predictions)},
        "intervals": {name: bootstrap_interval(task_config.kind, name, gold, predicted, **metric_options)
                      for name in task_config.metrics},
        **kind.breakdowns(task_config, gold, predictions, metric_options),
        "worst": most_confident_errors(task_config, examples, predictions), "seconds": seconds,
        "examples_per_second": len(examples) / seconds}
    if run is not None and (baseline := _run_baseline(run, task_config, examples)) is not None:
        result["baseline"] = {"linear": baseline}
        report_below(task_config, Path(data.path).name, result["metrics"]["test"], baseline["test"])
    return result, [{"where": example.where, **example.preview(), "gold": answer, "right": answer,  # right: as in 0.1
                     "prediction": prediction}
                    for example, answer, prediction in zip(examples, gold, predictions, strict=True)]


def _run_baseline(run: Path, task_config: TaskConfig, examples: Sequence[Example]) -> dict[str, Any] | None:
    """The scores of the linear baseline; None if the folder never had training examples, as for a downloaded model."""
    file = run / split_file("train", task_config)
    if head_task(task_config.kind).linear_baseline is None or not (file.is_file() or has_checksum(file)):
        return None
    try:
        return baseline_scores(task_config, {"train": read_split(run, "train", task_config), "test": examples})
    except CorruptFileError as error:  # the model is whole, so its scores are given
        logger.warning(f"no linear baseline: {error.message}")
        return None


def with_metrics(task_config: TaskConfig, examples: Sequence[Example], metrics: Sequence[str]) -> TaskConfig:
    """The task config with these metrics, or those of training, or the kind's defaults."""
    kind = head_task(task_config.kind)
    options = kind.complete_options(task_config.values, examples)
    names = tuple(metrics) or kind.suitable_metrics(task_config.metrics or kind.default_metrics, options)
    check_metrics(task_config.kind, names)
    return replace(task_config, metrics=names, values=options)


def most_confident_errors(task_config: TaskConfig, examples: Sequence[Example],
                          predicted: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    """The errors with the highest confidence; of regression, the largest errors."""
    kind = head_task(task_config.kind)
    gold = [kind.gold(example) for example in examples]
    confidences = kind.error_confidences(task_config, gold, examples, predicted)
    order = sorted((index for index, confidence in enumerate(confidences) if confidence is not None),
                   key=lambda index: -(confidences[index] or 0.0))
    errors = []
    for index in order[:MAX_WORST_ERRORS]:
        answer, confidence = predicted[index][kind.prediction_key], confidences[index]
        errors.append({"where": examples[index].where, **examples[index].preview(), "gold": gold[index],
                       "predicted": answer, "confidence": confidence,
                       "right": gold[index], "said": answer, "sure": confidence})  # the names of version 0.1
    return errors

