"""What a kind of task is: its examples, how they are read, laid out, answered, scored and shown, in one object.

No other module asks which kind a task is; it asks the kind. A kind is registered with the class of its values, which a
card keeps (`schema/task_values.py`):

    @register("task", "classify", ClassValues)
    class Classify(HeadTask): ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from stemma.schema.task_values import TaskValues
from stemma.tasks.data.examples import Example
from stemma.tasks.data.reading import Reading
from stemma.tasks.metrics.metric import Metric

if TYPE_CHECKING:
    from stemma.exchange.cards import Card
    from stemma.network.heads import HeadSpec
    from stemma.schema.finetuning import FinetuningSettings
    from stemma.tasks.data.datasets import Dataset
    from stemma.tasks.layout import RowLayout
    from stemma.tasks.learner import Item, Learner
    from stemma.tasks.template import Template
    from stemma.training.run import Plan

ANSWERS = frozenset({"label", "score", "gold_label", "labels", "tags", "ner_tags", "answers", "is_impossible"})
Columns = Mapping[str, str] | None  # what we call a column -> what the file calls it
Span = tuple[int, int]  # first character and the one behind the last
Said = Mapping[str, Any]  # the prediction for one example


@dataclass(frozen=True)
class Asked:
    """An example without its answer, what the prediction is to repeat of it, and where its words stand in its text."""

    example: Example
    told: dict[str, Any]
    words: Sequence[Span] = ()


@dataclass(frozen=True)
class ReportTable:
    """A table of an evaluation: in report.html, and shorter on a terminal."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | float]]
    note: str = ""
    short: Sequence[str] | None = None  # the columns' names on a terminal, where they differ; (): none
    digits: int = 4  # of a number there
    fits_terminal: bool = True


class TaskKind(ABC):
    """What every kind states, whether a head answers or the model writes."""

    idea: ClassVar[str]  # one sentence, which `stemma finetune --help` shows
    metrics: ClassVar[tuple[Metric, ...]]  # all that it can be scored by
    usual: ClassVar[tuple[str, ...]]  # those that are measured where nothing else is said; the first decides

    def __init__(self, name: str):
        self.name = name

    def prepare(self, gold: Sequence[Any], predicted: Sequence[Any], **extras: Any) -> Any:
        """What the metrics take: by default (gold, predicted)."""
        return gold, predicted

    @abstractmethod
    def resume(self, run: Path, plan: Plan, show: bool) -> dict[str, Any]:
        """Go on with a run of this kind that was interrupted."""

    def template(self) -> type[Template] | None:
        """How it is put to a language model in a prompt; None: it cannot be."""
        return None


class HeadTask(TaskKind):
    """A task that is learnt from examples, and answered by a head on the network."""

    example: ClassVar[type[Example]]  # a frozen dataclass
    answer: ClassVar[str]  # which entry of a prediction is compared with the gold answer
    texts: ClassVar[int] = 2  # the most texts that a row holds: templates are made for as many
    window: ClassVar[int | None] = None  # positions of a row, where that is not as many as the model reads
    has_classes: ClassVar[bool] = False  # answers are classes, which have labels and may have weights
    one_by_one: ClassVar[bool] = False  # an answer is right or wrong by itself: accuracy is a mean over examples
    features: ClassVar[Literal["text", "token"] | None] = None  # what --features reads for it; None: it cannot
    in_gpt_style: ClassVar[bool] = False  # GPT's paper says how it is put to a language model
    served_as: ClassVar[str | None] = None  # the kind whose Hugging Face class serves it; None: its own name
    number_kind: ClassVar[str | None] = None  # what a Hugging Face class of it with a single label is instead
    paired_kind: ClassVar[tuple[str, frozenset[str]] | None] = None  # (kind, columns): a file with one of them is that
    alike: ClassVar[frozenset[str]] = frozenset()  # other kinds whose files it can be evaluated on
    whole_files: ClassVar[frozenset[str]] = frozenset()  # suffixes of files that `predict` reads at once, as training
    numbers_rows: ClassVar[bool] = False  # its reader gives ids to examples that have none
    answer_columns: ClassVar[frozenset[str]] = ANSWERS  # which `predict` passes over
    plain_text: ClassVar[bool] = False  # a line of text is an input: `example_of_line`
    head_dropout: ClassVar[bool] = True  # the head has a dropout that a plan may set
    two_text_heads: ClassVar[bool] = False  # heads that read two texts apart (SAN) may answer it
    confidence: ClassVar[str] = "how sure"  # what `confidences` are, above their column

    # --- examples -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def read(self, path: str | Path, columns: Columns, reading: Reading) -> Sequence[Example]:
        """The examples of a file of one's own; `columns` renames the defaults."""

    def read_rows(self, name: str, columns: Columns, reading: Reading) -> Sequence[Example]:
        """The same of rows to be answered, which `reading` holds as a table."""
        return self.read(name, columns, reading)

    def example_of_line(self, where: str, line: str) -> Example:
        """A line of plain text as an example to be answered."""
        raise NotImplementedError(self.name)

    def ask_line(self, where: str, number: int, line: str) -> Asked:
        return self.asked(self.example_of_line(where, line), line=number)

    def asked(self, example: Example, **told: Any) -> Asked:
        if (known := getattr(example, "id", None)) is not None:
            told["id"] = known
        return Asked(example, told | example.told())

    def check(self, examples: Sequence[Example], name: str) -> None:
        """Refuse examples that cannot be learnt from or scored."""

    def store(self, example: Example) -> dict[str, Any]:
        """An example as a line of the run's .jsonl."""
        assert is_dataclass(example)
        return asdict(example)

    def restore(self, line: Mapping[str, Any]) -> Example:
        return self.example(**{key: _tuples(value) for key, value in line.items() if key != "prediction"})

    # --- the card -----------------------------------------------------------------------------------------------------

    def values(self, train: Sequence[Example], dataset: Dataset | None, settings: FinetuningSettings) -> dict[str, Any]:
        """What its learner must know of the training set and of [finetuning]."""
        return {}

    def unseen_values(self, labels: Sequence[str]) -> dict[str, Any]:
        """The same of a model that others trained: nothing is known of its examples."""
        return {"counts": [0] * len(labels)} if labels else {}

    def numbered(self, card: Card, examples: Sequence[Example]) -> Sequence[Example]:
        """With labels that are the numbers of the model's classes taken for those classes."""
        return examples

    def completed(self, values: TaskValues, examples: Sequence[Example]) -> TaskValues:
        """With what only the examples to be scored can tell, where the card does not."""
        return values

    def suited(self, metrics: tuple[str, ...], values: TaskValues) -> tuple[str, ...]:
        """What is measured by default, where these values leave no use for the usual metrics."""
        return metrics

    # --- the network --------------------------------------------------------------------------------------------------

    def heads(self, name: str, classes: int, dropout: float) -> dict[str, HeadSpec] | None:
        """Its heads where the model's family has none for it; None: one vector of the text is read, in the way that
        suits the body."""
        return None

    @abstractmethod
    def learner(self, card: Card, layout: RowLayout, seed: int) -> Learner:
        """Who lays examples out, scores them and reads answers."""

    def check_lesson(self, train: Sequence[Item], values: TaskValues, name: str) -> None:
        """Refuse a training set that teaches nothing."""

    def resume(self, run: Path, plan: Plan, show: bool) -> dict[str, Any]:
        from stemma.tasks import learning, trials
        from stemma.tasks.facts import HeadFacts
        from stemma.training.working import finished, working

        if (known := finished(run)) is not None:
            return known
        with working(run):
            return (learning.work if HeadFacts.of(plan).trials is None else trials.work)(run, show)

    # --- scores -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def gold(self, example: Example) -> Any:
        """The answer of an example that has one, as the metrics compare it."""

    def perfect(self, gold: Any) -> Any:
        """A prediction that is right."""
        return gold

    def extras(self, card: Card, examples: Sequence[Example]) -> dict[str, Any]:
        """What else `prepare` must know."""
        return {}

    def tuned(self, card: Card, examples: Sequence[Example], predictions: Sequence[dict[str, Any]]) -> TaskValues:
        """The values with what is best chosen on held-out examples, such as a threshold."""
        return card.values

    def settled(self, values: TaskValues, predictions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The predictions under these values."""
        return list(predictions)

    # --- what people see ----------------------------------------------------------------------------------------------

    def rendered(self, asked: Asked, said: Said) -> dict[str, Any]:
        """What `predict` adds to a prediction, now that the text is at hand."""
        return {}

    def tables(self, card: Card, gold: Sequence[Any], said: Sequence[Said],
               extras: Mapping[str, Any]) -> dict[str, Any]:
        """What stands behind the metrics, by name: entries of an evaluation's result.json."""
        return {}

    def report(self, result: Mapping[str, Any]) -> list[ReportTable]:
        """The same as tables to be read."""
        return []

    def confidences(self, card: Card, gold: Sequence[Any], examples: Sequence[Example],
                    said: Sequence[Said]) -> list[float | None]:
        """How confident the model was where it is wrong; None where it is right."""
        return [1.0 if one[self.answer] != answer else None for answer, one in zip(gold, said, strict=True)]


def _tuples(value: Any) -> Any:
    """JSON has lists only, and examples hold tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
