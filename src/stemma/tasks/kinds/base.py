"""What a kind of task is: its examples, how they are read, laid out, answered, scored and shown, in one object.

No other module asks which kind a task is; it asks the kind. A kind is registered with the class of its values, which a
card keeps (`schema/task_options.py`):

    @register("task", "classify", ClassValues)
    class Classify(HeadTask): ...
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
    from stemma.tasks.objectives.base import EncodedExample, TaskObjective
    from stemma.tasks.objectives.input_encoder import InputEncoder
    from stemma.tasks.prompt_template import PromptTemplate
    from stemma.training.run_folder import RunConfig

GOLD_COLUMNS = frozenset({"label", "score", "gold_label", "labels", "tags", "ner_tags", "answers", "is_impossible"})
Columns = Mapping[str, str] | None  # what we call a column -> what the file calls it
CharSpan = tuple[int, int]  # first character and the one behind the last
Prediction = Mapping[str, Any]  # the prediction for one example


@dataclass(frozen=True)
class PredictInput:
    """An example without its answer, what the prediction is to repeat of it, and where its words stand in its text."""

    example: Example
    echo: dict[str, Any]
    word_offsets: Sequence[CharSpan] = ()


@dataclass(frozen=True)
class ReportTable:
    """A table of an evaluation: in report.html, and shorter on a terminal."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | float]]
    note: str = ""
    terminal_columns: Sequence[str] | None = None  # the columns' names on a terminal, where they differ; (): none
    digits: int = 4  # of a number there
    fits_terminal: bool = True


class TaskKind(ABC):
    """What every kind states, whether a head answers or the model writes."""

    description: ClassVar[str]  # one sentence, which `stemma finetune --help` shows
    metrics: ClassVar[tuple[Metric, ...]]  # all that it can be scored by
    default_metrics: ClassVar[tuple[str, ...]]  # those that are measured where nothing else is said; the first decides

    def __init__(self, name: str):
        self.name = name

    def metric_inputs(self, gold: Sequence[Any], predicted: Sequence[Any], **metric_options: Any) -> Any:
        """What the metrics take: by default (gold, predicted)."""
        return gold, predicted

    @abstractmethod
    def resume(self, run: Path, plan: RunConfig, show: bool) -> dict[str, Any]:
        """Go on with a run of this kind that was interrupted."""

    def prompt_template(self) -> type[PromptTemplate] | None:
        """How it is put to a language model in a prompt; None: it cannot be."""
        return None


class HeadTask(TaskKind):
    """A task that is learnt from examples, and answered by a head on the network."""

    example_type: ClassVar[type[Example]]  # a frozen dataclass
    prediction_key: ClassVar[str]  # which entry of a prediction is compared with the gold answer
    max_texts: ClassVar[int] = 2  # the most texts that a row holds: templates are made for as many
    default_max_length: ClassVar[int | None] = None  # positions of a row, where that is not as many as the model reads
    has_classes: ClassVar[bool] = False  # answers are classes, which have labels and may have weights
    per_example: ClassVar[bool] = False  # an answer is right or wrong by itself: accuracy is a mean over examples
    feature_level: ClassVar[Literal["text", "token"] | None] = None  # what --features reads for it; None: it cannot
    supports_gpt_format: ClassVar[bool] = False  # GPT's paper says how it is put to a language model
    hf_kind: ClassVar[str | None] = None  # the kind whose Hugging Face class serves it; None: its own name
    single_label_kind: ClassVar[str | None] = None  # what a Hugging Face class of it with a single label is instead
    pair_kind: ClassVar[tuple[str, frozenset[str]] | None] = None  # (kind, columns): a file with one of them is that
    compatible_kinds: ClassVar[frozenset[str]] = frozenset()  # other kinds whose files it can be evaluated on
    whole_file_suffixes: ClassVar[frozenset[str]] = frozenset()  # suffixes of files that `predict` reads at once, as
    #                                                              training
    assigns_ids: ClassVar[bool] = False  # its reader gives ids to examples that have none
    gold_columns: ClassVar[frozenset[str]] = GOLD_COLUMNS  # which `predict` passes over
    accepts_lines: ClassVar[bool] = False  # a line of text is an input: `example_of_line`
    head_dropout: ClassVar[bool] = True  # the head has a dropout that a plan may set
    supports_san: ClassVar[bool] = False  # heads that read two texts apart (SAN) may answer it
    confidence_label: ClassVar[str] = "how sure"  # what `confidences` are, above their column

    # --- examples -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def read(self, path: str | Path, columns: Columns, reader: FileReader) -> Sequence[Example]:
        """The examples of a file of one's own; `columns` renames the defaults."""

    def read_rows(self, name: str, columns: Columns, reader: FileReader) -> Sequence[Example]:
        """The same of rows to be answered, which `reading` holds as a table."""
        return self.read(name, columns, reader)

    def example_from_line(self, where: str, line: str) -> Example:
        """A line of plain text as an example to be answered."""
        raise NotImplementedError(self.name)

    def input_from_line(self, where: str, line_number: int, line: str) -> PredictInput:
        return self.to_input(self.example_from_line(where, line), line=line_number)

    def to_input(self, example: Example, **echo: Any) -> PredictInput:
        if (known := getattr(example, "id", None)) is not None:
            echo["id"] = known
        return PredictInput(example, echo | example.echo())

    def check(self, examples: Sequence[Example], name: str) -> None:
        """Refuse examples that cannot be learnt from or scored."""

    def example_to_json(self, example: Example) -> dict[str, Any]:
        """An example as a line of the run's .jsonl."""
        assert is_dataclass(example)
        return asdict(example)

    def example_from_json(self, line: Mapping[str, Any]) -> Example:
        return self.example_type(**{key: _tuples(value) for key, value in line.items() if key != "prediction"})

    # --- the card -----------------------------------------------------------------------------------------------------

    def infer_options(self, train: Sequence[Example], dataset: Dataset | None,
                      settings: FinetuningSettings) -> dict[str, Any]:
        """What its learner must know of the training set and of [finetuning]."""
        return {}

    def default_options(self, labels: Sequence[str]) -> dict[str, Any]:
        """The same of a model that others trained: nothing is known of its examples."""
        return {"counts": [0] * len(labels)} if labels else {}

    def map_label_ids(self, task_config: TaskConfig, examples: Sequence[Example]) -> Sequence[Example]:
        """With labels that are the numbers of the model's classes taken for those classes."""
        return examples

    def complete_options(self, options: TaskOptions, examples: Sequence[Example]) -> TaskOptions:
        """With what only the examples to be scored can tell, where the card does not."""
        return options

    def suitable_metrics(self, metrics: tuple[str, ...], options: TaskOptions) -> tuple[str, ...]:
        """What is measured by default, where these values leave no use for the usual metrics."""
        return metrics

    # --- the network --------------------------------------------------------------------------------------------------

    def heads(self, name: str, classes: int, dropout: float) -> dict[str, HeadSpec] | None:
        """Its heads where the model's family has none for it; None: one vector of the text is read, in the way that
        suits the body."""
        return None

    @abstractmethod
    def objective(self, task_config: TaskConfig, input_encoder: InputEncoder, seed: int) -> TaskObjective:
        """Who lays examples out, scores them and reads answers."""

    def check_training_set(self, train: Sequence[EncodedExample], options: TaskOptions, name: str) -> None:
        """Refuse a training set that teaches nothing."""

    def resume(self, run: Path, plan: RunConfig, show: bool) -> dict[str, Any]:
        from stemma.tasks.runs import finetune_run, sweep
        from stemma.tasks.runs.finetune_spec import HeadFinetuneSpec
        from stemma.training.run_lock import finished_result, lock_run

        if (known := finished_result(run)) is not None:
            return known
        with lock_run(run):
            return (finetune_run.run_to_end if HeadFinetuneSpec.from_run_config(plan).trials is None
                    else sweep.run_to_end)(run, show)

    # --- scores -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def gold(self, example: Example) -> Any:
        """The answer of an example that has one, as the metrics compare it."""

    def perfect_prediction(self, gold: Any) -> Any:
        """A prediction that is right."""
        return gold

    def metric_options(self, task_config: TaskConfig, examples: Sequence[Example]) -> dict[str, Any]:
        """What else `prepare` must know."""
        return {}

    def tune(self, task_config: TaskConfig, examples: Sequence[Example],
             predictions: Sequence[dict[str, Any]]) -> TaskOptions:
        """The values with what is best chosen on held-out examples, such as a threshold."""
        return task_config.values

    def apply_options(self, options: TaskOptions, predictions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The predictions under these values."""
        return list(predictions)

    # --- what people see ----------------------------------------------------------------------------------------------

    def render(self, predict_input: PredictInput, predicted: Prediction) -> dict[str, Any]:
        """What `predict` adds to a prediction, now that the text is at hand."""
        return {}

    def breakdowns(self, task_config: TaskConfig, gold: Sequence[Any], predicted: Sequence[Prediction],
               metric_options: Mapping[str, Any]) -> dict[str, Any]:
        """What stands behind the metrics, by name: entries of an evaluation's result.json."""
        return {}

    def report_tables(self, result: Mapping[str, Any]) -> list[ReportTable]:
        """The same as tables to be read."""
        return []

    def error_confidences(self, task_config: TaskConfig, gold: Sequence[Any], examples: Sequence[Example],
                    predicted: Sequence[Prediction]) -> list[float | None]:
        """How confident the model was where it is wrong; None where it is right."""
        return [1.0 if one[self.prediction_key] != answer else None for answer,
                one in zip(gold, predicted, strict=True)]


def _tuples(value: Any) -> Any:
    """JSON has lists only, and examples hold tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
