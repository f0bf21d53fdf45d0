"""Regression: a number for a text or a text pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stemma.errors import UserError
from stemma.registry import register
from stemma.schema.task_options import TaskOptions
from stemma.tasks.data.examples import Example, TextExample
from stemma.tasks.kinds.base import Prediction
from stemma.tasks.kinds.texts import TextTask
from stemma.tasks.metrics import regression

if TYPE_CHECKING:
    from stemma.schema.finetuning import FinetuningSettings
    from stemma.task_config import TaskConfig
    from stemma.tasks.datasets import Dataset
    from stemma.tasks.objectives.base import EncodedExample, TaskObjective
    from stemma.tasks.objectives.input_encoder import InputEncoder


class RegressionOptions(TaskOptions):
    spread: float = 1.0  # standard deviation of the training labels


@register("task", "regress", RegressionOptions)
class RegressionTask(TextTask):
    description = "A number for one text or two."
    metrics = regression.METRICS
    default_metrics = ("pearson", "spearman")
    prediction_key = "score"
    allows_pair = numeric = True
    linear_baseline = "ridge"
    confidence_label = "absolute error"

    def metric_inputs(self, gold: Sequence[Any], predicted: Sequence[Any], **metric_options: Any) -> Any:
        return regression.metric_inputs(gold, predicted, **metric_options)

    def infer_options(self, train: Sequence[Example], dataset: Dataset | None,
                      settings: FinetuningSettings) -> dict[str, Any]:
        return {"spread": float(np.std([self.gold(example) for example in train]))}

    def default_options(self, labels: Sequence[str]) -> dict[str, Any]:
        return {"spread": 1.0}

    def check_training_set(self, train: Sequence[EncodedExample], options: TaskOptions, name: str) -> None:
        assert isinstance(options, RegressionOptions)
        if not options.spread:
            raise UserError(f"{name} has the same number on every row; there is nothing to learn.")

    def objective(self, task_config: TaskConfig, input_encoder: InputEncoder, seed: int) -> TaskObjective:
        from stemma.tasks.objectives.sequence import RegressionObjective

        assert isinstance(task_config.values, RegressionOptions)
        return RegressionObjective(task_config.name, input_encoder, dict(task_config.heads), task_config.values.spread)

    def gold(self, example: Example) -> float:
        assert isinstance(example, TextExample) and example.label is not None
        return float(example.label)

    def error_confidences(self, task_config: TaskConfig, gold: Sequence[Any], examples: Sequence[Example],
                          predicted: Sequence[Prediction]) -> list[float | None]:
        # An absolute error of 0 is a correct prediction: None.
        return [abs(prediction["score"] - label) or None for label, prediction in zip(gold, predicted, strict=True)]
