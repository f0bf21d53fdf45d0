"""A number for one text or two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stemma.errors import UserError
from stemma.registry import register
from stemma.schema.task_values import TaskValues
from stemma.tasks.data.examples import Example, TextExample
from stemma.tasks.kinds.base import Said
from stemma.tasks.kinds.texts import TextTask
from stemma.tasks.metrics import numbers

if TYPE_CHECKING:
    from stemma.exchange.cards import Card
    from stemma.schema.finetuning import FinetuningSettings
    from stemma.tasks.data.datasets import Dataset
    from stemma.tasks.layout import RowLayout
    from stemma.tasks.learner import Item, Learner


class NumberValues(TaskValues):
    spread: float = 1.0  # standard deviation of the training set's numbers


@register("task", "regress", NumberValues)
class Regress(TextTask):
    idea = "A number for one text or two."
    metrics = numbers.METRICS
    usual = ("pearson", "spearman")
    answer = "score"
    two_texts = numeric = True
    confidence = "how far off"

    def prepare(self, gold: Sequence[Any], predicted: Sequence[Any], **extras: Any) -> Any:
        return numbers.prepare(gold, predicted, **extras)

    def values(self, train: Sequence[Example], dataset: Dataset | None, settings: FinetuningSettings) -> dict[str, Any]:
        return {"spread": float(np.std([self.gold(example) for example in train]))}

    def unseen_values(self, labels: Sequence[str]) -> dict[str, Any]:
        return {"spread": 1.0}

    def check_lesson(self, train: Sequence[Item], values: TaskValues, name: str) -> None:
        assert isinstance(values, NumberValues)
        if not values.spread:
            raise UserError(f"{name} has the same number on every row; there is nothing to learn.")

    def learner(self, card: Card, layout: RowLayout, seed: int) -> Learner:
        from stemma.tasks.sentences import NumberLearner

        assert isinstance(card.values, NumberValues)
        return NumberLearner(card.name, layout, dict(card.heads), card.values.spread)

    def gold(self, example: Example) -> float:
        assert isinstance(example, TextExample) and example.label is not None
        return float(example.label)

    def confidences(self, card: Card, gold: Sequence[Any], examples: Sequence[Example],
                    said: Sequence[Said]) -> list[float | None]:
        return [abs(one["score"] - answer) or None for answer, one in zip(gold, said, strict=True)]
