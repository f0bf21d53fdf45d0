"""Extractive question answering, with or without unanswerable questions (SQuAD, arXiv:1606.05250, 1806.03822)."""

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

NO_THRESHOLD = 1.0  # no probability exceeds it, so an answer is always predicted


class QuestionAnsweringOptions(TaskOptions):
    style: str | None = None  # how the official script compares answers; None: detected from the answers
    silence: bool = False  # a question may have no answer
    stride: int | None = None  # tokens between the starts of two windows
    overlap: int | None = None  # or tokens shared by two windows
    threshold: float | None = None  # predict "no answer" above this probability


@register("task", "qa", QuestionAnsweringOptions)
class QuestionAnsweringTask(HeadTask):
    description = "Find the answer to a question in a text."
    example_type = QuestionExample
    metrics = question_answering.METRICS
    default_metrics = ("f1", "exact_match")
    prediction_key = "answer"
    default_max_length = 384  # tokens of a window of a long document, as in BERT
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
        windows = {"stride": settings.stride} if settings.overlap is None else {"overlap": settings.overlap}
        return {"style": None if dataset is None else dataset.answer_matching,
                "silence": any(getattr(example, "impossible", False) for example in train), **windows}

    def default_options(self, labels: Sequence[str]) -> dict[str, Any]:
        return {"silence": False, "stride": default_finetuning().stride}  # config.json does not state them

    def heads(self, name: str, classes: int, dropout: float) -> dict[str, HeadSpec]:
        from stemma.network.task_heads import SpanHead

        return {name: SpanHead()}

    def objective(self, task_config: TaskConfig, input_encoder: InputEncoder, seed: int) -> TaskObjective:
        from stemma.tasks.objectives.question_answering import QuestionAnsweringObjective

        options = _options(task_config)
        windows = {key: value for key in ("stride", "overlap") if (value := getattr(options, key)) is not None}
        threshold = 0.5 if options.threshold is None else options.threshold
        return QuestionAnsweringObjective(task_config.name, input_encoder, dict(task_config.heads), options.silence,
                                          threshold, **windows)

    def gold(self, example: Example) -> list[str]:
        assert isinstance(example, QuestionExample)
        return [answer.text for answer in example.answers]

    def perfect_prediction(self, gold: Any) -> str:
        return str(gold[0]) if gold else ""

    def metric_options(self, task_config: TaskConfig, examples: Sequence[Example]) -> dict[str, Any]:
        return {"matching": _options(task_config).style}

    def tune(self, task_config: TaskConfig, examples: Sequence[Example],
             predictions: Sequence[dict[str, Any]]) -> TaskOptions:
        """Tune the no-answer threshold for the best score, as the official SQuAD 2.0 script does."""
        options = _options(task_config)
        if not options.silence:
            return options
        answered = self.apply_options(options.model_copy(update={"threshold": NO_THRESHOLD}), predictions)
        labelled = [(example, prediction) for example, prediction in zip(examples, answered, strict=True)
                    if example.has_gold]
        scores = question_answering.metric_inputs([self.gold(example) for example, _ in labelled],
                                                  [prediction["answer"] for _, prediction in labelled],
                                                  no_answer=[prediction["no_answer"] for _, prediction in labelled],
                                                  matching=options.style)
        tuned_metric = scores.exact if task_config.metrics[0] == "exact_match" else scores.f1
        threshold = question_answering.best_threshold(scores, tuned_metric)[1]
        return options.model_copy(update={"threshold": threshold})

    def apply_options(self, options: TaskOptions, predictions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        from stemma.tasks.objectives.question_answering import apply_no_answer_threshold

        assert isinstance(options, QuestionAnsweringOptions)
        if options.threshold is None:
            return list(predictions)
        return [apply_no_answer_threshold(prediction, options.threshold) for prediction in predictions]

    def breakdowns(self, task_config: TaskConfig, gold: Sequence[Any], predicted: Sequence[Prediction],
                   metric_options: Mapping[str, Any]) -> dict[str, Any]:
        no_answer = {"no_answer": [prediction["no_answer"] for prediction in predicted]} \
            if _options(task_config).silence else {}
        answers = [prediction["answer"] for prediction in predicted]
        return {"answers": squad2_summary(gold, answers, **metric_options, **no_answer)}

    def report_tables(self, result: Mapping[str, Any]) -> list[ReportTable]:
        return [ReportTable("Questions with and without an answer", ["", "value"],
                            [[name, value] for name, value in result["answers"].items()],
                            "The names are those of SQuAD 2.0's official script.", terminal_columns=(), digits=2)]

    def error_confidences(self, task_config: TaskConfig, gold: Sequence[Any], examples: Sequence[Example],
                          predicted: Sequence[Prediction]) -> list[float | None]:
        matches = ANSWER_MATCHERS[_options(task_config).style or detect_answer_matching(gold)]
        wrong = [not matches(prediction["answer"], answers)[0]
                 for answers, prediction in zip(gold, predicted, strict=True)]
        confidences = [prediction["score"] * (1 - prediction["no_answer"]) if prediction["answer"]
                       else prediction["no_answer"] for prediction in predicted]
        return [confidence if is_wrong else None for is_wrong, confidence in zip(wrong, confidences, strict=True)]

    def prompt_template(self) -> type[PromptTemplate]:
        from stemma.tasks.prompt_template import GenerationTemplate

        return GenerationTemplate


def _options(task_config: TaskConfig) -> QuestionAnsweringOptions:
    assert isinstance(task_config.values, QuestionAnsweringOptions)
    return task_config.values
