"""Which candidates answer a query best: rows of one query are ranked among each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stemma.errors import UserError
from stemma.registry import register
from stemma.schema.task_values import TaskValues
from stemma.tasks.data.checks import check_grades
from stemma.tasks.data.examples import Example, TextExample
from stemma.tasks.kinds.base import Said
from stemma.tasks.kinds.texts import TextTask
from stemma.tasks.metrics import ranking

if TYPE_CHECKING:
    from stemma.exchange.cards import Card
    from stemma.tasks.layout import RowLayout
    from stemma.tasks.learner import Item, Learner


class RankValues(TaskValues):
    others: int = 3  # candidates that a good one competes with while it is learnt


@register("task", "rank", RankValues)
class Rank(TextTask):
    idea = "Which candidates answer a query best."
    metrics = ranking.METRICS
    usual = ("map", "mrr", "precision_at_1")
    answer = "score"
    one_text, two_texts = False, True
    grouped = True
    confidence = "how far above"

    def prepare(self, gold: Sequence[Any], predicted: Sequence[Any], **extras: Any) -> Any:
        return ranking.prepare(gold, predicted, **extras)

    def check(self, examples: Sequence[Example], name: str) -> None:
        check_grades(examples, name)

    def check_lesson(self, train: Sequence[Item], values: TaskValues, name: str) -> None:
        if not train:
            raise UserError(f"{name} has no query with both a good candidate and another, so it teaches no order; give "
                            "such queries.")

    def learner(self, card: Card, layout: RowLayout, seed: int) -> Learner:
        from stemma.tasks.sentences import RankLearner

        assert isinstance(card.values, RankValues)
        return RankLearner(card.name, layout, dict(card.heads), card.values.others, seed)

    def gold(self, example: Example) -> float:
        assert isinstance(example, TextExample) and example.label is not None
        return float(example.label)

    def extras(self, card: Card, examples: Sequence[Example]) -> dict[str, Any]:
        return {"groups": [_query(example) for example in examples]}

    def confidences(self, card: Card, gold: Sequence[Any], examples: Sequence[Example],
                    said: Sequence[Said]) -> list[float | None]:
        """Of a bad candidate that stands above a good one of its query: how far."""
        lowest: dict[str, float] = {}
        queries = [_query(example) for example in examples]
        for query, grade, one in zip(queries, gold, said, strict=True):
            if grade >= 1:
                lowest[query] = min(lowest.get(query, one["score"]), one["score"])
        above = [one["score"] - lowest.get(query, one["score"]) if grade < 1 else 0.0
                 for query, grade, one in zip(queries, gold, said, strict=True)]
        return [gap if gap > 0 else None for gap in above]


def _query(example: Example) -> str:
    assert isinstance(example, TextExample)
    return example.group or example.texts[0]
