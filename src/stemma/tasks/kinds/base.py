"""Base classes of task kinds: how examples are read, encoded, predicted, scored and displayed.

Other modules never test for a kind by name; they call its methods. A kind is registered with the class of its options,
which the task config stores (`schema/task_options.py`):

    @register("task", "classify", TaskOptions)
    class TextClassificationTask(HeadTask): ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from stemma.schema.task_options import TaskOptions
from stemma.tasks.data.examples import Example
from stemma.tasks.data.file_reader import FileReader
from stemma.tasks.metrics.metric import Metric

if TYPE_CHECKING:
    from stemma.network.heads import HeadSpec
    from stemma.schema.finetuning import FinetuningSettings
    from stemma.task_config import TaskConfig
    from stemma.tasks.datasets import Dataset
    from stemma.tasks.linear_baseline import Method
    from stemma.tasks.objectives.base import EncodedExample, TaskObjective
    from stemma.tasks.objectives.input_encoder import InputEncoder
    from stemma.tasks.prompt_template import PromptTemplate
    from stemma.training.run_folder import RunConfig

GOLD_COLUMNS = frozenset({"label", "score", "gold_label", "labels", "tags", "ner_tags", "answers", "is_impossible"})
Columns = Mapping[str, str] | None  # our column name -> the file's column name
CharSpan = tuple[int, int]  # [start, end) in characters
Prediction = Mapping[str, Any]  # the prediction for one example


@dataclass(frozen=True)
class PredictInput:
    """An example without its gold label, the fields that the prediction repeats, and the offsets of its words."""

    example: Example
    echo: dict[str, Any]
    word_offsets: Sequence[CharSpan] = ()


@dataclass(frozen=True)
class ReportTable:
    """A table of an evaluation, for report.html and (shortened) for the terminal."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | float]]
    note: str = ""
    terminal_columns: Sequence[str] | None = None  # column names on a terminal if they differ; (): no header
    digits: int = 4  # decimals of a number on a terminal
    fits_terminal: bool = True


class TaskKind(ABC):
    """What every task kind defines, whether it predicts with a head or by generating text."""

    description: ClassVar[str]  # one sentence, shown by `stemma finetune --help`
    metrics: ClassVar[tuple[Metric, ...]]  # all metrics of this kind
    default_metrics: ClassVar[tuple[str, ...]]  # used by default; the first selects the best model

    def __init__(self, name: str):
        self.name = name

    def metric_inputs(self, gold: Sequence[Any], predicted: Sequence[Any], **metric_options: Any) -> Any:
        """The argument of every metric of this kind; by default (gold, predicted)."""
        return gold, predicted

    @abstractmethod
    def resume(self, run: Path, run_config: RunConfig, show: bool) -> dict[str, Any]:
        """Resume an interrupted run of this kind."""

    def prompt_template(self) -> type[PromptTemplate] | None:
        """The prompt template class for zero-shot and few-shot evaluation; None: not supported."""
        return None


class HeadTask(TaskKind):
    """A task that trains a head on examples."""

    example_type: ClassVar[type[Example]]  # a frozen dataclass
    prediction_key: ClassVar[str]  # the entry of a prediction that is compared with the gold label
    max_texts: ClassVar[int] = 2  # maximal number of texts per example; there is a template for each count
    default_max_length: ClassVar[int | None] = None  # in tokens; None: the model's maximal length
    has_classes: ClassVar[bool] = False  # predicts classes, which have labels and may have weights
    per_example: ClassVar[bool] = False  # each prediction is correct or wrong: accuracy is a mean over examples
    linear_baseline: ClassVar[Method | None] = None  # the estimator of the linear baseline; None: there is none
    feature_level: ClassVar[Literal["text", "token"] | None] = None  # what --features reads; None: not supported
    supports_gpt_format: ClassVar[bool] = False  # the GPT paper defines an input format for it
    hf_kind: ClassVar[str | None] = None  # the kind whose Hugging Face class it uses; None: its own
    single_label_kind: ClassVar[str | None] = None  # the kind of a Hugging Face model with a single label
    pair_kind: ClassVar[tuple[str, frozenset[str]] | None] = None  # (kind, columns): a file with these columns is that
    compatible_kinds: ClassVar[frozenset[str]] = frozenset()  # other kinds whose files it can be evaluated on
    # `predict` reads files with these suffixes at once, like training files
    whole_file_suffixes: ClassVar[frozenset[str]] = frozenset()
    assigns_ids: ClassVar[bool] = False  # its reader numbers examples that have no id
    gold_columns: ClassVar[frozenset[str]] = GOLD_COLUMNS  # columns that `predict` ignores
    accepts_lines: ClassVar[bool] = False  # a line of plain text is an input: `example_from_line`
    head_dropout: ClassVar[bool] = True  # a plan may set the dropout of the head
    supports_crf: ClassVar[bool] = False  # a CRF may predict its tags as one sequence (finetuning.crf)
    supports_san: ClassVar[bool] = False  # the SAN head, which reads two texts separately, may be used
    confidence_label: ClassVar[str] = "confidence"  # column heading of `error_confidences`

    # --- examples -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def read(self, path: str | Path, columns: Columns, reader: FileReader) -> Sequence[Example]:
        """Read a user's file; `columns` renames the default columns."""

    def read_rows(self, name: str, columns: Columns, reader: FileReader) -> Sequence[Example]:
        """Read rows to predict; `reader` holds them as a table."""
        return self.read(name, columns, reader)

    def example_from_line(self, where: str, line: str) -> Example:
        """Turn a line of plain text into an example to predict."""
        raise NotImplementedError(self.name)

    def input_from_line(self, where: str, line_number: int, line: str) -> PredictInput:
        return self.to_input(self.example_from_line(where, line), line=line_number)

    def to_input(self, example: Example, **echo: Any) -> PredictInput:
        if (example_id := getattr(example, "id", None)) is not None:
            echo["id"] = example_id
        return PredictInput(example, echo | example.echo())

    def check(self, examples: Sequence[Example], name: str) -> None:
        """Raise an error if examples cannot be trained on or scored."""

    def example_to_json(self, example: Example) -> dict[str, Any]:
        """An example as an object of the run's .jsonl file."""
        assert is_dataclass(example)
        return asdict(example)

    def example_from_json(self, line: Mapping[str, Any]) -> Example:
        return self.example_type(**{key: _tuples(value) for key, value in line.items() if key != "prediction"})

    # --- task config --------------------------------------------------------------------------------------------------

    def infer_options(self, train: Sequence[Example], dataset: Dataset | None,
                      settings: FinetuningSettings) -> dict[str, Any]:
        """Task options that follow from the training set and from [finetuning]."""
        return {}

    def default_options(self, labels: Sequence[str]) -> dict[str, Any]:
        """Task options of an imported model, whose training set is unknown."""
        return {"counts": [0] * len(labels)} if labels else {}

    def map_label_ids(self, task_config: TaskConfig, examples: Sequence[Example]) -> Sequence[Example]:
        """Map labels that are class ids to the model's class names."""
        return examples

    def complete_options(self, options: TaskOptions, examples: Sequence[Example]) -> TaskOptions:
        """Fill in options that the task config lacks from the examples to score."""
        return options

    def suitable_metrics(self, metrics: tuple[str, ...], options: TaskOptions) -> tuple[str, ...]:
        """The default metrics under these options, where the usual ones do not apply."""
        return metrics

    # --- the network --------------------------------------------------------------------------------------------------

    def heads(self, name: str, classes: int, dropout: float) -> dict[str, HeadSpec] | None:
        """Its heads if the model family defines none; None: a head on one pooled vector, as suits the architecture."""
        return None

    @abstractmethod
    def objective(self, task_config: TaskConfig, input_encoder: InputEncoder, seed: int) -> TaskObjective:
        """The objective that encodes examples, computes the loss and decodes predictions."""

    def check_training_set(self, train: Sequence[EncodedExample], options: TaskOptions, name: str) -> None:
        """Raise an error if nothing can be learned from the training set."""

    def resume(self, run: Path, run_config: RunConfig, show: bool) -> dict[str, Any]:
        from stemma.tasks.runs import finetune_run, sweep
        from stemma.tasks.runs.finetune_spec import HeadFinetuneSpec
        from stemma.training.run_lock import finished_result, lock_run

        if (result := finished_result(run)) is not None:
            return result
        with lock_run(run):
            return (finetune_run.run_to_end if HeadFinetuneSpec.from_run_config(run_config).trials is None
                    else sweep.run_to_end)(run, show)

    # --- scores -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def gold(self, example: Example) -> Any:
        """The gold label of an example that has one, in the form that the metrics compare."""

    def perfect_prediction(self, gold: Any) -> Any:
        """A correct prediction for this gold label."""
        return gold

    def metric_options(self, task_config: TaskConfig, examples: Sequence[Example]) -> dict[str, Any]:
        """Keyword arguments for `metric_inputs`."""
        return {}

    def tune(self, task_config: TaskConfig, examples: Sequence[Example],
             predictions: Sequence[dict[str, Any]]) -> TaskOptions:
        """The options with tuned values, such as a threshold, chosen on the dev set."""
        return task_config.values

    def apply_options(self, options: TaskOptions, predictions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The predictions under these options, such as a tuned threshold."""
        return list(predictions)

    # --- output and reports -------------------------------------------------------------------------------------------

    def render(self, predict_input: PredictInput, predicted: Prediction) -> dict[str, Any]:
        """Fields that `predict` adds to a prediction and that need the text, such as entities."""
        return {}

    def breakdowns(self, task_config: TaskConfig, gold: Sequence[Any], predicted: Sequence[Prediction],
                   metric_options: Mapping[str, Any]) -> dict[str, Any]:
        """Details behind the metrics, by name: entries of an evaluation's result.json."""
        return {}

    def report_tables(self, result: Mapping[str, Any]) -> list[ReportTable]:
        """The breakdowns as tables for the report."""
        return []

    def error_confidences(self, task_config: TaskConfig, gold: Sequence[Any], examples: Sequence[Example],
                          predicted: Sequence[Prediction]) -> list[float | None]:
        """The confidence of each wrong prediction; None for correct ones."""
        return [1.0 if prediction[self.prediction_key] != label else None
                for label, prediction in zip(gold, predicted, strict=True)]


def _tuples(value: Any) -> Any:
    """Convert lists to tuples: JSON has only lists, and examples hold tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
