"""The plan of a pipeline in TOML: its stages, their data, and the stage that each starts from.

    general = "encyclopedia.txt"      # text to measure forgetting on; default: the text of the first stage
    ablate  = true                    # fine-tune from the model of every stage, to measure its gain
    seeds   = 3

    [stages.general]
    model = "downloaded/bert"         # or recipe = "bert@tiny" and corpus = "encyclopedia.txt"

    [stages.domain]
    corpus = "papers/*.txt"
    steps  = 2000
    replay = 0.1                      # 10% of the text is general text

    [stages.task]
    texts_of = "finetune"             # the texts of its examples, without labels
    epochs   = 20

    [stages.finetune]
    task        = "classify"
    train       = "train.tsv"
    dev         = "dev.tsv"
    interpolate = [0.5, 0.75, 1.0]    # weight interpolation; the best on dev

A stage starts from the one above it, or from the one that `after` names. Paths are relative to the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from stemma import toml
from stemma.schema.base import Count, Natural, OpenFraction, Positive, Probability, Settings
from stemma.tasks.runs.finetune import TaskArguments
from stemma.training.run_folder import TextReadingOptions

BUDGETS = ("steps", "tokens", "minutes", "epochs")
READING_KEYS = ("documents", "field", "encoding", "errors")
TEXT_ONLY = ("recipe", "corpus", "texts_of", "replay", "tokens", "documents", "field")
TASK_ONLY = ("task", "train", "dev", "test", "columns", "metric")
StringList = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
FractionList = Annotated[list[Probability],
                         BeforeValidator(lambda value: value if isinstance(value, list) else [value])]


class StageEntry(Settings):
    """A [stages.NAME] table of a plan."""

    after: str | None = None
    model: str | None = None
    recipe: str | None = None
    corpus: StringList = []
    texts_of: str | None = None
    task: str | None = None
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    columns: dict[str, str] = {}
    metric: StringList = []
    steps: Count | None = None
    tokens: Count | None = None
    minutes: Positive | None = None
    epochs: Positive | None = None
    changes: StringList = []
    seed: Natural | None = None
    replay: OpenFraction | None = None
    interpolate: FractionList = []
    documents: str = "blank"
    field: str = "text"
    encoding: str = "utf-8"
    errors: str = "strict"

    @property
    def kind(self) -> str:
        """model: a given model; text: language model training; task: fine-tuning."""
        stated = self.model_fields_set
        return "model" if "model" in stated else "task" if stated & set(TASK_ONLY) else "text"


class PlanHeader(Settings):
    """The top-level keys of a plan."""

    general: StringList = []
    seed: Natural = 0
    ablate: bool = False
    seeds: Count = 1
    ngram: Count = 8
    contamination: Literal["warn", "refuse"] = "warn"


@dataclass(frozen=True)
class PipelineStage:
    """A stage with its resolved parent and seed."""

    name: str
    after: str | None  # the stage that it starts from; None: it starts a line of stages
    entry: StageEntry
    seed: int

    @property
    def kind(self) -> str:
        return self.entry.kind

    @property
    def reading_options(self) -> TextReadingOptions:
        return TextReadingOptions(**{key: getattr(self.entry, key) for key in READING_KEYS})

    def budget(self) -> dict[str, Any]:
        return {key: value for key in BUDGETS if (value := getattr(self.entry, key)) is not None}

    def task_arguments(self) -> TaskArguments:
        entry = self.entry
        files = {split: path for split in ("train", "dev", "test") if (path := getattr(entry, split)) is not None}
        return TaskArguments(entry.task or "", files, entry.columns or None, entry.metric)


@dataclass(frozen=True)
class PipelinePlan:
    """A parsed and checked plan."""

    header: PlanHeader
    stages: dict[str, PipelineStage]  # in topological order

    def ancestors(self, name: str) -> list[PipelineStage]:
        """The chain of stages from the first to this one."""
        stage = self.stages[name]
        return [*(self.ancestors(stage.after) if stage.after else []), stage]

    def of_kind(self, kind: str) -> list[PipelineStage]:
        return [stage for stage in self.stages.values() if stage.kind == kind]

    def general(self) -> tuple[list[str], TextReadingOptions]:
        """The general text: the one named in the plan, or the text of the first stage; may be empty."""
        if self.header.general:
            return self.header.general, TextReadingOptions()
        first = next(iter(self.stages.values()))
        return first.entry.corpus, first.reading_options

    def to_toml(self) -> str:
        """The plan with absolute paths, so that it can be moved."""
        header = self.header.model_dump(exclude_unset=True)
        tables = {}
        for name, stage in self.stages.items():
            stated = stage.entry.model_dump(exclude_unset=True)
            tables[name] = {**stated, "after": stage.after} if stage.after else stated
        return "# The plan as it runs; its paths are absolute.\n" + toml.dumps({**header, "stages": tables})
