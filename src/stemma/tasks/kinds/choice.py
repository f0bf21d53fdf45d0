"""Which of several options is right: each is a row of its own, and they compete."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemma.registry import register
from stemma.schema.task_values import TaskValues
from stemma.tasks.data.choices import read_choices
from stemma.tasks.data.examples import ChoiceExample, Example
from stemma.tasks.data.reading import Reading
from stemma.tasks.kinds.base import Columns, HeadTask, Said
from stemma.tasks.kinds.texts import wrong_scores
from stemma.tasks.metrics import labels

if TYPE_CHECKING:
    from stemma.exchange.cards import Card
    from stemma.tasks.layout import RowLayout
    from stemma.tasks.learner import Learner
    from stemma.tasks.template import Template


@register("task", "choice", TaskValues)
class Choice(HeadTask):
    idea = "Which of several options is right."
    example = ChoiceExample
    metrics = (labels.ACCURACY,)
    usual = ("accuracy",)
    answer = "label"
    one_by_one = True
    in_gpt_style = True

    def prepare(self, gold: Sequence[Any], predicted: Sequence[Any], **extras: Any) -> Any:
        return labels.prepare(gold, predicted, **extras)

    def read(self, path: str | Path, columns: Columns, reading: Reading) -> Sequence[Example]:
        return read_choices(path, columns, reading)

    def learner(self, card: Card, layout: RowLayout, seed: int) -> Learner:
        from stemma.tasks.sentences import OptionLearner

        return OptionLearner(card.name, layout, dict(card.heads))

    def gold(self, example: Example) -> int:
        assert isinstance(example, ChoiceExample) and example.label is not None
        return example.label

    def confidences(self, card: Card, gold: Sequence[Any], examples: Sequence[Example],
                    said: Sequence[Said]) -> list[float | None]:
        return wrong_scores(gold, said)

    def template(self) -> type[Template]:
        from stemma.tasks.template import Choice as Prompt

        return Prompt
