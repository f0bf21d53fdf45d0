"""Where in a text the answer to a question stands; some questions have none (SQuAD, arXiv:1606.05250, 1806.03822)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemma.registry import register
from stemma.schema.finetuning import default_finetuning
from stemma.schema.task_options import TaskOptions
from stemma.tasks.data.examples import Answer, Example, QuestionExample
from stemma.tasks.data.file_reader import FileReader
from stemma.tasks.data.squad import read_squad
from stemma.tasks.kinds.base import Columns, HeadTask, Prediction, ReportTable
from stemma.tasks.metrics import question_answering
from stemma.tasks.metrics.question_answering import ANSWER_MATCHERS, detect_answer_matching, squad2_summary

if TYPE_CHECKING:
    from stemma.network.heads import HeadSpec
    from stemma.schema.finetuning import FinetuningSettings
    from stemma.task_config import TaskConfig
    from stemma.tasks.datasets import Dataset
    from stemma.tasks.objectives.base import TaskObjective
    from stemma.tasks.objectives.input_encoder import InputEncoder
    from stemma.tasks.prompt_template import PromptTemplate

NO_THRESHOLD = 1.0  # a threshold that no probability exceeds: an answer is always given


class QuestionAnsweringOptions(TaskOptions):
    style: str | None = None  # how the official script compares answers; None: as they look
    silence: bool = False  # a question may have no answer
    stride: int | None = None  # tokens between the beginnings of two windows
    overlap: int | None = None  # or tokens that they share
    threshold: float | None = None  # how likely "no answer" must be before it is said


@register("task", "qa", QuestionAnsweringOptions)
class QuestionAnsweringTask(HeadTask):
    description = "Where in a text the answer to a question stands."
    example_type = QuestionExample
    metrics = question_answering.METRICS
    default_metrics = ("f1", "exact_match")
    prediction_key = "answer"
    default_max_length = 384  # positions of a window of a long document, as BERT's authors have it
    whole_file_suffixes = frozenset({".json"})
    assigns_ids = True
    head_dropout = False

    def metric_inputs(self, gold: Sequence[Any], predicted: Sequence[Any], **metric_options: Any) -> Any:
        return question_answering.metric_inputs(gold, predicted, **metric_options)

    def read(self, path: str | Path, columns: Columns, reader: FileReader) -> Sequence[Example]:
        return read_squad(path, columns, reader)

    def example_from_json(self, line: Mapping[str, Any]) -> Example:
        return super().example_from_json({**line, "answers": [Answer(**answer) for answer in line["answers"]]})

    def infer_options(self, train: Sequence[Example], dataset: Dataset | None,
                      settings: FinetuningSettings) -> dict[str, Any]:
        cut = {"stride": settings.stride} if settings.overlap is None else {"overlap": settings.overlap}
        return {"style": None if dataset is None else dataset.answer_matching,
                "silence": any(getattr(example, "impossible", False) for example in train), **cut}

    def default_options(self, labels: Sequence[str]) -> dict[str, Any]:
        return {"silence": False, "stride": default_finetuning().stride}  # which config.json does not tell

    def heads(self, name: str, classes: int, dropout: float) -> dict[str, HeadSpec]:
        from stemma.network.task_heads import SpanHead

        return {name: SpanHead()}

    def objective(self, task_config: TaskConfig, input_encoder: InputEncoder, seed: int) -> TaskObjective:
        from stemma.tasks.objectives.question_answering import QuestionAnsweringObjective

        values = _values(task_config)
        cut = {key: found for key in ("stride", "overlap") if (found := getattr(values, key)) is not None}
        threshold = 0.5 if values.threshold is None else values.threshold
        return QuestionAnsweringObjective(task_config.name, input_encoder, dict(task_config.heads), values.silence,
                                          threshold, **cut)

    def gold(self, example: Example) -> list[str]:
        assert isinstance(example, QuestionExample)
        return [answer.text for answer in example.answers]

    def perfect_prediction(self, gold: Any) -> str:
        return str(gold[0]) if gold else ""

    def metric_options(self, task_config: TaskConfig, examples: Sequence[Example]) -> dict[str, Any]:
        return {"style": _values(task_config).style}

    def tune(self, task_config: TaskConfig, examples: Sequence[Example],
             predictions: Sequence[dict[str, Any]]) -> TaskOptions:
        """With the threshold that gives the best score here, as the official script of SQuAD 2.0 finds it."""
        values = _values(task_config)
        if not values.silence:
            return values
        said = self.apply_options(values.model_copy(update={"threshold": NO_THRESHOLD}), predictions)
        known = [(example, one) for example, one in zip(examples, said, strict=True) if example.has_gold]
        case = question_answering.metric_inputs([self.gold(example) for example, _ in known],
                                                [one["answer"] for _, one in known],
                               no_answer=[one["no_answer"] for _, one in known], matching=values.style)
        best = question_answering.best_threshold(case, case.exact if task_config.metrics[0] == "exact_match"
                                                 else case.f1)[1]
        return values.model_copy(update={"threshold": best})

    def apply_options(self, options: TaskOptions, predictions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        from stemma.tasks.objectives.question_answering import apply_no_answer_threshold

        assert isinstance(options, QuestionAnsweringOptions)
        if options.threshold is None:
            return list(predictions)
        return [apply_no_answer_threshold(prediction, options.threshold) for prediction in predictions]

    def breakdowns(self, task_config: TaskConfig, gold: Sequence[Any], predicted: Sequence[Prediction],
               metric_options: Mapping[str, Any]) -> dict[str, Any]:
        chances = {"no_answer": [one["no_answer"] for one in predicted]} if _values(task_config).silence else {}
        return {"answers": squad2_summary(gold, [one["answer"] for one in predicted], **metric_options, **chances)}

    def report_tables(self, result: Mapping[str, Any]) -> list[ReportTable]:
        return [ReportTable("Questions with and without an answer", ["", "value"],
                            [[name, value] for name, value in result["answers"].items()],
                            "The names are those of SQuAD 2.0's official script.", terminal_columns=(), digits=2)]

    def error_confidences(self, task_config: TaskConfig, gold: Sequence[Any], examples: Sequence[Example],
                    predicted: Sequence[Prediction]) -> list[float | None]:
        style = ANSWER_MATCHERS[_values(task_config).style or detect_answer_matching(gold)]
        missed = [not style(one["answer"], answer)[0] for answer, one in zip(gold, predicted, strict=True)]
        sure = [one["no_answer"] if not one["answer"] else one["score"] * (1 - one["no_answer"]) for one in predicted]
        return [chance if wrong else None for wrong, chance in zip(missed, sure, strict=True)]

    def prompt_template(self) -> type[PromptTemplate]:
        from stemma.tasks.prompt_template import GenerationTemplate

        return GenerationTemplate


def _values(card: TaskConfig) -> QuestionAnsweringOptions:
    assert isinstance(card.values, QuestionAnsweringOptions)
    return card.values
