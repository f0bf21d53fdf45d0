"""How good a model is at its tasks while it learns them: by this the best look is chosen, and trials are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from stemma.model import Model
from stemma.progress import progress_stage
from stemma.task_config import TaskConfig
from stemma.tasks.data.examples import Example
from stemma.tasks.kinds import head_task
from stemma.tasks.metrics import metrics_for
from stemma.tasks.objectives.base import EncodedExample, TaskObjective
from stemma.tasks.runs.compute_metrics import compute_metrics
from stemma.tasks.runs.finetune_loader import inference_batches
from stemma.training.early_stopping import MetricFn


@torch.inference_mode()
def model_outputs(model: Model, objective: TaskObjective, encoded: Sequence[EncodedExample]) -> list[np.ndarray]:
    """The numbers from which the answer to each item is read: logits, as a rule."""
    answers: list[np.ndarray] = [np.zeros(0)] * len(encoded)
    with progress_stage("predicting", len(encoded), "rows") as work:
        for numbers, batch in inference_batches(model, objective, encoded):
            batch = batch.to(model.device)
            hidden = model.network(batch.streams)
            for number, answer in zip(numbers, objective.outputs(model.network, hidden, batch), strict=True):
                answers[number] = answer
            work.advance(len(numbers))
    return answers


def dev_scorer(model: Model, task_configs: Mapping[str, TaskConfig], objectives: Mapping[str, TaskObjective],
             examples: Mapping[str, Mapping[str, Sequence[Example]]]) -> MetricFn | None:
    """Says how good the model is on the dev sets, by the metric of each task that decides, and their mean where there
    are several tasks. None where no answer is known."""
    known = {name: [example for example in examples[name]["dev"] if example.has_gold] for name in task_configs}
    if not all(known.values()):
        return None

    def judge() -> float:
        worths = []
        for name, card in task_configs.items():
            items = objectives[name].encode(known[name])
            predictions = objectives[name].postprocess(items, model_outputs(model, objectives[name], items),
                                                       known[name])
            kind = head_task(card.kind)
            predictions = kind.apply_options(kind.tune(card, known[name], predictions), predictions)
            worths.append(selection_score(card, compute_metrics(card, known[name], predictions)))
        return float(np.mean(worths))

    return judge


def selection_score(task_config: TaskConfig, metrics: Mapping[str, Any]) -> float:
    """What decides, such that higher is better and a perfect score is 1; a metric that is not defined (a correlation
    with what never changes) is worth less than any other."""
    metric = metrics_for(task_config.kind)[task_config.metrics[0]]
    value = float(metrics[metric.name])
    if math.isnan(value):
        return -math.inf
    return (value if metric.higher_is_better else -value) / metric.scale
