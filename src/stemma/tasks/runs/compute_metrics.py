"""From examples and what a model said of them to the metrics of their task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stemma.task_config import TaskConfig
from stemma.tasks.data.examples import Example
from stemma.tasks.kinds import head_task
from stemma.tasks.metrics import compute_scores


def gold_and_predicted(task_config: TaskConfig, examples: Sequence[Example],
                   predictions: Sequence[dict[str, object]]) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """(what is right, what was said, what else the metrics of this kind must know) of the examples that have an
    answer."""
    kind = head_task(task_config.kind)
    known = [(example, said) for example, said in zip(examples, predictions, strict=True) if example.has_gold]
    gold, found = [kind.gold(example) for example, _ in known], [said[kind.prediction_key] for _, said in known]
    return gold, found, kind.metric_options(task_config, [example for example, _ in known])


def check_metrics_apply(task_config: TaskConfig, examples: Sequence[Example]) -> None:
    """Score perfect answers, so that a metric which does not suit these examples says so before anything is trained."""
    kind = head_task(task_config.kind)
    known = [example for example in examples if example.has_gold]
    compute_metrics(task_config, known, [{kind.prediction_key: kind.perfect_prediction(kind.gold(example))}
                                         for example in known])


def compute_metrics(task_config: TaskConfig, examples: Sequence[Example],
                    predictions: Sequence[dict[str, object]]) -> dict[str, Any]:
    """The metrics by name, and how many examples they rest on; of examples without answers, only their number."""
    gold, found, extras = gold_and_predicted(task_config, examples, predictions)
    scores = compute_scores(task_config.kind, task_config.metrics, gold, found, **extras) if gold else {}
    return {**scores, "examples": len(examples)}
