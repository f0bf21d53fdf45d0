"""Options that verbs share, each defined once, and groups of them.

A verb takes a group as one parameter: `text: TextOptions` gives it --documents, --field, --encoding and --errors
(`common_options.py` expands a group into single options for typer). A field without a default is a required option.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stemma.cli.output import at_least

if TYPE_CHECKING:
    from stemma.training.run_folder import TextReadingOptions

DocumentsOption = Annotated[str, typer.Option(help="What ends a document in plain text: blank (line), line or file.")]
FieldOption = Annotated[str, typer.Option(help="Text field of jsonl or parquet.")]
EncodingOption = Annotated[str, typer.Option(help="Encoding of the text.")]
ErrorsOption = Annotated[str, typer.Option(help="Bytes that are invalid in the encoding: strict, replace or ignore.")]
PairsOption = Annotated[bool, typer.Option("--pairs", help="Parallel text: PATH is a table of source and target.")]
TargetOption = Annotated[list[str] | None, typer.Option(
    metavar="PATH", show_default=False, help="Parallel text: the target side, line by line; one for each PATH.")]
ColumnsOption = Annotated[str, typer.Option(help="Column names of source and target in a table of pairs.")]
EmptyOption = Annotated[str, typer.Option(help="Pairs with an empty side: refuse or skip.")]
SeedOption = Annotated[int, at_least(0, "Random seed")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace what is at --out.")]
NoBaselineOption = Annotated[bool, typer.Option("--no-baseline", help="Leave out the linear baseline (TF-IDF "
                                                "of n-grams, and logistic or ridge regression).")]
RunOption = Annotated[Path, typer.Option(metavar="RUN", show_default=False, help="The run folder to create.")]
CorpusOption = Annotated[list[str], typer.Option("--corpus", metavar="DIR|PATH", show_default=False,
                                                 help="A corpus folder, or raw text: a file, folder, glob or -.")]


@dataclass(frozen=True)
class FileEncoding:
    """The encoding of a text file."""

    encoding: EncodingOption = "utf-8"
    errors: ErrorsOption = "strict"

    def options(self) -> dict[str, Any]:
        """Arguments for a text reader."""
        return dict(vars(self))

    def reading(self) -> TextReadingOptions:
        """The options as a run stores them."""
        from stemma.training.run_folder import TextReadingOptions

        return TextReadingOptions(**self.options())


@dataclass(frozen=True)
class TextOptions(FileEncoding):
    """How running text is read."""

    documents: DocumentsOption = "blank"
    field: FieldOption = "text"

    @property
    def is_set(self) -> dict[str, bool]:
        """For each option of running text, whether it is set."""
        return {"--documents": self.documents != "blank", "--field": self.field != "text"}


@dataclass(frozen=True)
class PairOptions:
    """How parallel text is read."""

    columns: ColumnsOption = "source,target"
    empty: EmptyOption = "refuse"

    @property
    def is_set(self) -> dict[str, bool]:
        return {"--columns": self.columns != "source,target", "--empty": self.empty != "refuse"}


@dataclass(frozen=True)
class CorpusText(TextOptions):
    """How pre-training text is read, running or parallel."""

    target: TargetOption = None
    columns: ColumnsOption = "source,target"
    empty: EmptyOption = "refuse"

    def options(self) -> dict[str, Any]:
        return {**self.running(), **vars(self.paired)}

    def running(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(TextOptions)}

    @property
    def paired(self) -> PairOptions:
        return PairOptions(self.columns, self.empty)


@dataclass(frozen=True)
class NewRun:
    """The folder and seed of a new run."""

    out: RunOption
    seed: SeedOption = 0
    overwrite: OverwriteOption = False

    def options(self) -> dict[str, Any]:
        return {"seed": self.seed, "overwrite": self.overwrite}


@dataclass(frozen=True)
class TaskBudget:
    """The budget of a fine-tuning."""

    epochs: Annotated[float | None, typer.Option(metavar="N", show_default="the recipe's", help="Number of "
                                                 "epochs.")] = None
    steps: Annotated[int | None, typer.Option(metavar="N", help="Or number of steps.")] = None
    minutes: Annotated[float | None, typer.Option(metavar="M", help="Or minutes of training.")] = None

    def options(self) -> dict[str, Any]:
        return dict(vars(self))
