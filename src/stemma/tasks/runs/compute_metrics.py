"""Compute the metrics of a task from examples and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stemma.task_config import TaskConfig
from stemma.tasks.data.examples import Example
from stemma.tasks.kinds import head_task
from stemma.tasks.metrics import compute_scores


def gold_and_predicted(task_config: TaskConfig, examples: Sequence[Example],
                       predictions: Sequence[dict[str, object]]) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """(gold, predicted, metric options) of the labelled examples."""
    kind = head_task(task_config.kind)
    labelled = [(example, prediction) for example, prediction in zip(examples, predictions, strict=True)
                if example.has_gold]
    gold = [kind.gold(example) for example, _ in labelled]
    predicted = [prediction[kind.prediction_key] for _, prediction in labelled]
    return gold, predicted, kind.metric_options(task_config, [example for example, _ in labelled])


def check_metrics_apply(task_config: TaskConfig, examples: Sequence[Example]) -> None:
    """Score perfect predictions, so that a metric that does not suit the examples fails before training."""
    kind = head_task(task_config.kind)
    labelled = [example for example in examples if example.has_gold]
    compute_metrics(task_config, labelled, [{kind.prediction_key: kind.perfect_prediction(kind.gold(example))}
                                            for example in labelled])


def compute_metrics(task_config: TaskConfig, examples: Sequence[Example],
                    predictions: Sequence[dict[str, object]]) -> dict[str, Any]:
    """The metrics by name, and the number of examples; only the latter for unlabelled examples."""
    gold, predicted, options = gold_and_predicted(task_config, examples, predictions)
    scores = compute_scores(task_config.kind, task_config.metrics, gold, predicted, **options) if gold else {}
    return {**scores, "examples": len(examples)}
