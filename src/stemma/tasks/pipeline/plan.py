"""A plan in TOML: which stages there are, what each learns from, and on top of which it stands.

    general = "encyclopedia.txt"      # what must not be forgotten; by default the text of the first stage
    ablate  = true                    # fine-tune from the model of every stage, to see which of them paid off
    seeds   = 3

    [stages.general]
    model = "downloaded/bert"         # or recipe = "bert@tiny" and corpus = "encyclopedia.txt"

    [stages.domain]
    corpus = "papers/*.txt"
    steps  = 2000
    replay = 0.1                      # a tenth of what is read is general text

    [stages.task]
    texts_of = "finetune"             # the texts of its examples, without their labels
    epochs   = 20

    [stages.finetune]
    task        = "classify"
    train       = "train.tsv"
    dev         = "dev.tsv"
    interpolate = [0.5, 0.75, 1.0]    # how much of what was learnt is kept; dev decides

A stage stands on the one above it, or on the one that `after` names. Paths are looked for beside the plan.
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
FractionList = Annotated[list[Probability], BeforeValidator(lambda value: value if isinstance(value,
                                                                                              list) else [value])]


class StageEntry(Settings):
    """A [stages.NAME] as it stands in a plan."""

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
        """model: it is there already; text: a language model learns; task: examples are learnt."""
        stated = self.model_fields_set
        return "model" if "model" in stated else "task" if stated & set(TASK_ONLY) else "text"


class PlanHeader(Settings):
    """What stands above the stages."""

    general: StringList = []
    seed: Natural = 0
    ablate: bool = False
    seeds: Count = 1
    ngram: Count = 8
    contamination: Literal["warn", "refuse"] = "warn"


@dataclass(frozen=True)
class PipelineStage:
    name: str
    after: str | None  # the stage that it starts from; None: it is the first of its line
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
        files = {part: path for part in ("train", "dev", "test") if (path := getattr(entry, part)) is not None}
        return TaskArguments(entry.task or "", files, entry.columns or None, entry.metric)


@dataclass(frozen=True)
class PipelinePlan:
    header: PlanHeader
    stages: dict[str, PipelineStage]  # in an order in which each comes after the one that it stands on

    def ancestors(self, name: str) -> list[PipelineStage]:
        """A stage and those that it stands on, the first one first."""
        stage = self.stages[name]
        return [*(self.ancestors(stage.after) if stage.after else []), stage]

    def of_kind(self, kind: str) -> list[PipelineStage]:
        return [stage for stage in self.stages.values() if stage.kind == kind]

    def general(self) -> tuple[list[str], TextReadingOptions]:
        """The general text: what the plan names, or what the first stage learns from; none where neither does."""
        first = next(iter(self.stages.values()))
        return (self.header.general, TextReadingOptions()) if self.header.general else (first.entry.corpus,
                                                                                        first.reading_options)

    def to_toml(self) -> str:
        """The plan with absolute paths, so that it holds wherever it lies."""
        header = self.header.model_dump(exclude_unset=True)
        tables = {}
        for name, stage in self.stages.items():
            stated = stage.entry.model_dump(exclude_unset=True)
            tables[name] = {**stated, "after": stage.after} if stage.after else stated
        return "# The plan as it runs; its paths are absolute.\n" + toml.dumps({**header, "stages": tables})
