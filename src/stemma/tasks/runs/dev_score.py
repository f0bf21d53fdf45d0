"""Dev scores during training: they select the best checkpoint, and compare the runs of a sweep."""

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
    """The raw outputs of each item: usually logits."""
    outputs: list[np.ndarray] = [np.zeros(0)] * len(encoded)
    with progress_stage("predicting", len(encoded), "rows") as work:
        for indices, batch in inference_batches(model, objective, encoded):
            batch = batch.to(model.device)
            hidden = model.network(batch.streams)
            for index, output in zip(indices, objective.outputs(model.network, hidden, batch), strict=True):
                outputs[index] = output
            work.advance(len(indices))
    return outputs


def dev_scorer(model: Model, task_configs: Mapping[str, TaskConfig], objectives: Mapping[str, TaskObjective],
               examples: Mapping[str, Mapping[str, Sequence[Example]]]) -> MetricFn | None:
    """A function that computes the dev score: the selection metric, averaged over the tasks. None if a dev set has no
    labels."""
    labelled = {name: [example for example in examples[name]["dev"] if example.has_gold] for name in task_configs}
    if not all(labelled.values()):
        return None

    def score() -> float:
        scores = []
        for name, task_config in task_configs.items():
            items = objectives[name].encode(labelled[name])
            predictions = objectives[name].postprocess(items, model_outputs(model, objectives[name], items),
                                                       labelled[name])
            kind = head_task(task_config.kind)
            predictions = kind.apply_options(kind.tune(task_config, labelled[name], predictions), predictions)
            scores.append(selection_score(task_config, compute_metrics(task_config, labelled[name], predictions)))
        return float(np.mean(scores))

    return score


def selection_score(task_config: TaskConfig, metrics: Mapping[str, Any]) -> float:
    """The first metric, scaled so that higher is better and 1 is perfect; an undefined metric (NaN) ranks last."""
    metric = metrics_for(task_config.kind)[task_config.metrics[0]]
    value = float(metrics[metric.name])
    if math.isnan(value):
        return -math.inf
    return (value if metric.higher_is_better else -value) / metric.scale
