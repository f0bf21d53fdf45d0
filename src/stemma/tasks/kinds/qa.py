"""Where in a text the answer to a question stands; some questions have none (SQuAD, arXiv:1606.05250, 1806.03822)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemma.registry import register
from stemma.schema.finetuning import unstated
from stemma.schema.task_values import TaskValues
from stemma.tasks.data.examples import Answer, Example, QuestionExample
from stemma.tasks.data.questions import read_questions
from stemma.tasks.data.reading import Reading
from stemma.tasks.kinds.base import Columns, HeadTask, ReportTable, Said
from stemma.tasks.metrics import answers
from stemma.tasks.metrics.answers import STYLES, answer_table, style_of

if TYPE_CHECKING:
    from stemma.exchange.cards import Card
    from stemma.network.heads import HeadSpec
    from stemma.schema.finetuning import FinetuningSettings
    from stemma.tasks.data.datasets import Dataset
    from stemma.tasks.layout import RowLayout
    from stemma.tasks.learner import Learner
    from stemma.tasks.template import Template

ALWAYS = 1.0  # a threshold that no probability exceeds: an answer is always given


class AnswerValues(TaskValues):
    style: str | None = None  # how the official script compares answers; None: as they look
    silence: bool = False  # a question may have no answer
    stride: int | None = None  # tokens between the beginnings of two windows
    overlap: int | None = None  # or tokens that they share
    threshold: float | None = None  # how likely "no answer" must be before it is said


@register("task", "qa", AnswerValues)
class Questions(HeadTask):
    idea = "Where in a text the answer to a question stands."
    example = QuestionExample
    metrics = answers.METRICS
    usual = ("f1", "exact_match")
    answer = "answer"
    window = 384  # positions of a window of a long document, as BERT's authors have it
    whole_files = frozenset({".json"})
    numbers_rows = True
    head_dropout = False

    def prepare(self, gold: Sequence[Any], predicted: Sequence[Any], **extras: Any) -> Any:
        return answers.prepare(gold, predicted, **extras)

    def read(self, path: str | Path, columns: Columns, reading: Reading) -> Sequence[Example]:
        return read_questions(path, columns, reading)

    def restore(self, line: Mapping[str, Any]) -> Example:
        return super().restore({**line, "answers": [Answer(**answer) for answer in line["answers"]]})

    def values(self, train: Sequence[Example], dataset: Dataset | None, settings: FinetuningSettings) -> dict[str, Any]:
        cut = {"stride": settings.stride} if settings.overlap is None else {"overlap": settings.overlap}
        return {"style": None if dataset is None else dataset.style,
                "silence": any(getattr(example, "impossible", False) for example in train), **cut}

    def unseen_values(self, labels: Sequence[str]) -> dict[str, Any]:
        return {"silence": False, "stride": unstated().stride}  # which config.json does not tell

    def heads(self, name: str, classes: int, dropout: float) -> dict[str, HeadSpec]:
        from stemma.network.task_heads import SpanHead

        return {name: SpanHead()}

    def learner(self, card: Card, layout: RowLayout, seed: int) -> Learner:
        from stemma.tasks.questions import SpanLearner

        values = _values(card)
        cut = {key: found for key in ("stride", "overlap") if (found := getattr(values, key)) is not None}
        threshold = 0.5 if values.threshold is None else values.threshold
        return SpanLearner(card.name, layout, dict(card.heads), values.silence, threshold, **cut)

    def gold(self, example: Example) -> list[str]:
        assert isinstance(example, QuestionExample)
        return [answer.text for answer in example.answers]

    def perfect(self, gold: Any) -> str:
        return str(gold[0]) if gold else ""

    def extras(self, card: Card, examples: Sequence[Example]) -> dict[str, Any]:
        return {"style": _values(card).style}

    def tuned(self, card: Card, examples: Sequence[Example], predictions: Sequence[dict[str, Any]]) -> TaskValues:
        """With the threshold that gives the best score here, as the official script of SQuAD 2.0 finds it."""
        values = _values(card)
        if not values.silence:
            return values
        said = self.settled(values.model_copy(update={"threshold": ALWAYS}), predictions)
        known = [(example, one) for example, one in zip(examples, said, strict=True) if example.is_known]
        case = answers.prepare([self.gold(example) for example, _ in known], [one["answer"] for _, one in known],
                               no_answer=[one["no_answer"] for _, one in known], style=values.style)
        best = answers.best_threshold(case, case.exact if card.metrics[0] == "exact_match" else case.f1)[1]
        return values.model_copy(update={"threshold": best})

    def settled(self, values: TaskValues, predictions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        from stemma.tasks.questions import settled

        assert isinstance(values, AnswerValues)
        if values.threshold is None:
            return list(predictions)
        return [settled(prediction, values.threshold) for prediction in predictions]

    def tables(self, card: Card, gold: Sequence[Any], said: Sequence[Said],
               extras: Mapping[str, Any]) -> dict[str, Any]:
        chances = {"no_answer": [one["no_answer"] for one in said]} if _values(card).silence else {}
        return {"answers": answer_table(gold, [one["answer"] for one in said], **extras, **chances)}

    def report(self, result: Mapping[str, Any]) -> list[ReportTable]:
        return [ReportTable("Questions with and without an answer", ["", "value"],
                            [[name, value] for name, value in result["answers"].items()],
                            "The names are those of SQuAD 2.0's official script.", short=(), digits=2)]

    def confidences(self, card: Card, gold: Sequence[Any], examples: Sequence[Example],
                    said: Sequence[Said]) -> list[float | None]:
        style = STYLES[_values(card).style or style_of(gold)]
        missed = [not style(one["answer"], answer)[0] for answer, one in zip(gold, said, strict=True)]
        sure = [one["no_answer"] if not one["answer"] else one["score"] * (1 - one["no_answer"]) for one in said]
        return [chance if wrong else None for wrong, chance in zip(missed, sure, strict=True)]

    def template(self) -> type[Template]:
        from stemma.tasks.template import Question

        return Question


def _values(card: Card) -> AnswerValues:
    assert isinstance(card.values, AnswerValues)
    return card.values
