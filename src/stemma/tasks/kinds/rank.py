"""Ranking: the candidates of a query are ordered by relevance score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stemma.errors import UserError
from stemma.registry import register
from stemma.schema.task_options import TaskOptions
from stemma.tasks.data.checks import check_relevance_labels
from stemma.tasks.data.examples import Example, TextExample
from stemma.tasks.kinds.base import Prediction
from stemma.tasks.kinds.texts import TextTask
from stemma.tasks.metrics import ranking

if TYPE_CHECKING:
    from stemma.task_config import TaskConfig
    from stemma.tasks.objectives.base import EncodedExample, TaskObjective
    from stemma.tasks.objectives.input_encoder import InputEncoder


class RankingOptions(TaskOptions):
    others: int = 3  # sampled negatives per relevant candidate in training


@register("task", "rank", RankingOptions)
class RankingTask(TextTask):
    description = "Rank the candidates of a query."
    metrics = ranking.METRICS
    default_metrics = ("map", "mrr", "precision_at_1")
    prediction_key = "score"
    allows_single, allows_pair = False, True
    grouped = True
    confidence_label = "score margin"

    def metric_inputs(self, gold: Sequence[Any], predicted: Sequence[Any], **metric_options: Any) -> Any:
        return ranking.metric_inputs(gold, predicted, **metric_options)

    def check(self, examples: Sequence[Example], name: str) -> None:
        check_relevance_labels(examples, name)

    def check_training_set(self, train: Sequence[EncodedExample], options: TaskOptions, name: str) -> None:
        if not train:
            raise UserError(f"{name} has no query with both a good candidate and another, so it teaches no order; give "
                            "such queries.")

    def objective(self, task_config: TaskConfig, input_encoder: InputEncoder, seed: int) -> TaskObjective:
        from stemma.tasks.objectives.sequence import RankingObjective

        assert isinstance(task_config.values, RankingOptions)
        return RankingObjective(task_config.name, input_encoder, dict(task_config.heads), task_config.values.others,
                                seed)

    def gold(self, example: Example) -> float:
        assert isinstance(example, TextExample) and example.label is not None
        return float(example.label)

    def metric_options(self, task_config: TaskConfig, examples: Sequence[Example]) -> dict[str, Any]:
        return {"groups": [_query(example) for example in examples]}

    def error_confidences(self, task_config: TaskConfig, gold: Sequence[Any], examples: Sequence[Example],
                          predicted: Sequence[Prediction]) -> list[float | None]:
        """By how much an irrelevant candidate outscores the lowest relevant one of its query."""
        lowest: dict[str, float] = {}
        queries = [_query(example) for example in examples]
        for query, grade, prediction in zip(queries, gold, predicted, strict=True):
            if grade >= 1:
                lowest[query] = min(lowest.get(query, prediction["score"]), prediction["score"])
        margins = [prediction["score"] - lowest.get(query, prediction["score"]) if grade < 1 else 0.0
                   for query, grade, prediction in zip(queries, gold, predicted, strict=True)]
        return [margin if margin > 0 else None for margin in margins]


def _query(example: Example) -> str:
    assert isinstance(example, TextExample)
    return example.group or example.texts[0]
