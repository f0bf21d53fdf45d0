"""The scores of the linear baseline beside those of a fine-tuned model: fitted to the same training examples, scored on
the same examples with the same metrics. Kinds of tasks that it does not suit have none."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from stemma.errors import UserError
from stemma.progress import progress_stage
from stemma.task_config import TaskConfig
from stemma.tasks.data.examples import Example
from stemma.tasks.kinds import head_task
from stemma.tasks.kinds.texts import class_weights_of
from stemma.tasks.linear_baseline import METHODS, LinearBaseline
from stemma.tasks.runs.compute_metrics import compute_metrics
from stemma.tasks.runs.dev_score import selection_score

logger = logging.getLogger(__name__)

LINEAR = "linear"  # its name in a result
FIT = "fit"  # how it was fitted, beside the scores of each split
Splits = Mapping[str, Sequence[Example]]


def check_has_baseline(kind: str) -> None:
    """Refuse --no-baseline for a kind of task that has no baseline anyway."""
    if head_task(kind).linear_baseline is None:
        raise UserError(f"--no-baseline has no effect with {kind}, which has no linear baseline; leave it out.")


def baseline_scores(task_config: TaskConfig, examples: Splits) -> dict[str, Any] | None:
    """The scores of the baseline on each labelled split but `train`, to which it is fitted; and how it was fitted. None
    if this kind of task has no baseline."""
    kind = head_task(task_config.kind)
    method = kind.linear_baseline
    if method is None:
        return None
    with progress_stage("fitting the linear baseline", bar="none"):
        train = [example for example in examples["train"] if example.has_gold]
        weights = class_weights_of(task_config)
        baseline = LinearBaseline([example.input_texts() for example in train],
                                  [kind.gold(example) for example in train],
                                  dict(zip(task_config.labels, weights, strict=True)) if weights else None, method)
        scores: dict[str, Any] = {}
        for split, rows in examples.items():
            if split != "train" and any(example.has_gold for example in rows):
                predicted = [{kind.prediction_key: value}
                             for value in baseline.predict([example.input_texts() for example in rows])]
                scores[split] = compute_metrics(task_config, rows, predicted)
    if baseline.num_examples < len(train):
        logger.info(f"the linear baseline is fitted to a sample of {baseline.num_examples:,} of {len(train):,} "
                    "training examples.")
    return {**scores, FIT: {"method": METHODS[method], "examples": baseline.num_examples,
                            "inverse_penalty": baseline.inverse_penalty, "seconds": baseline.seconds}}


def score_baselines(task_configs: Mapping[str, TaskConfig], examples: Mapping[str, Splits], metrics: Mapping[str, Any],
                    multitask: bool = False, tried_rates: bool = False) -> dict[str, Any]:
    """{"baseline": {"linear": {split: scores}}} in the form of the model's `metrics`, which it is compared with; empty
    if no task has a baseline. `tried_rates`: the model is the best of several learning rates."""
    linear: dict[str, Any] = {}
    for name, task_config in task_configs.items():
        for split, scores in (baseline_scores(task_config, examples[name]) or {}).items():
            if not multitask:
                linear[split] = scores
            else:
                linear.setdefault(split, {"tasks": {}})["tasks"][name] = scores
            if split == "dev":
                own = metrics["dev"]["tasks"][name] if multitask else metrics["dev"]
                report_below(task_config, f"dev, {name}" if multitask else "dev", own, scores, tried_rates)
    return {"baseline": {LINEAR: linear}} if linear else {}


def report_below(task_config: TaskConfig, where: str, model: Mapping[str, Any], baseline: Mapping[str, Any],
                 tried_rates: bool = False) -> None:
    """Say so if the model is worse than the baseline by its first metric."""
    metric = task_config.metrics[0]
    if selection_score(task_config, model) < selection_score(task_config, baseline):
        rates = "" if tried_rates else ", another training.learning_rate"
        logger.warning(
            f"{where}: the model's {metric} of {model[metric]:.4f} is worse than the linear baseline's "
            f"{baseline[metric]:.4f}; try more epochs{rates} or a model with more pre-training.")
