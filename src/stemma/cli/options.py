"""The options that verbs share, each defined once, and the groups in which they come.

A verb takes a group as one parameter: `text: TextOptions` gives it --documents, --field, --encoding and --errors
(`common.py` spells a group out for typer). A group without defaults for all of its fields is required.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stemma.cli.output import at_least

if TYPE_CHECKING:
    from stemma.training.run_folder import TextReadingOptions

DocumentsOption = Annotated[str, typer.Option(help="In plain text, what ends a document: blank, line or file.")]
FieldOption = Annotated[str, typer.Option(help="The field of jsonl or parquet that holds the text.")]
EncodingOption = Annotated[str, typer.Option(help="The text's encoding.")]
ErrorsOption = Annotated[str, typer.Option(help="Bytes that do not fit the encoding: strict, replace or ignore.")]
PairsOption = Annotated[bool, typer.Option("--pairs", help="Parallel text: tables of source and target.")]
TargetOption = Annotated[list[str] | None, typer.Option(
    metavar="PATH", show_default=False, help="Parallel text: the other side, line by line; once for each PATH.")]
ColumnsOption = Annotated[str, typer.Option(help="Which columns of such a table, the source first.")]
EmptyOption = Annotated[str, typer.Option(help="Pairs with an empty side: refuse or skip.")]
SeedOption = Annotated[int, at_least(0, "All randomness follows from it.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace what stands at --out.")]
RunOption = Annotated[Path, typer.Option(metavar="RUN", show_default=False, help="The run folder to make.")]
CorpusOption = Annotated[list[str], typer.Option("--corpus", metavar="DIR|PATH", show_default=False,
                                                 help="A corpus folder, or raw text: a file, folder, glob or -.")]


@dataclass(frozen=True)
class Encoded:
    """How the bytes of a file are read."""

    encoding: EncodingOption = "utf-8"
    errors: ErrorsOption = "strict"

    def options(self) -> dict[str, Any]:
        """As readers take them."""
        return dict(vars(self))

    def reading(self) -> TextReadingOptions:
        """As runs keep them."""
        from stemma.training.run_folder import TextReadingOptions

        return TextReadingOptions(**self.options())


@dataclass(frozen=True)
class TextOptions(Encoded):
    """How running text is read."""

    documents: DocumentsOption = "blank"
    field: FieldOption = "text"

    @property
    def stated(self) -> dict[str, bool]:
        """Which of them are for running text alone, and given."""
        return {"--documents": self.documents != "blank", "--field": self.field != "text"}


@dataclass(frozen=True)
class PairOptions:
    """How parallel text is read."""

    columns: ColumnsOption = "source,target"
    empty: EmptyOption = "refuse"

    @property
    def stated(self) -> dict[str, bool]:
        return {"--columns": self.columns != "source,target", "--empty": self.empty != "refuse"}


@dataclass(frozen=True)
class AnyText(TextOptions):
    """How the text of a pre-training is read, running or parallel."""

    target: TargetOption = None
    columns: ColumnsOption = "source,target"
    empty: EmptyOption = "refuse"

    def options(self) -> dict[str, Any]:
        return {**self.running(), **vars(self.paired)}

    def running(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(TextOptions)}

    @property
    def paired(self) -> PairOptions:
        return PairOptions(self.columns, self.empty)


@dataclass(frozen=True)
class NewRun:
    """Where a run goes, and what its randomness follows from."""

    out: RunOption
    seed: SeedOption = 0
    overwrite: OverwriteOption = False

    def options(self) -> dict[str, Any]:
        return {"seed": self.seed, "overwrite": self.overwrite}


@dataclass(frozen=True)
class TaskBudget:
    """How long a task is learnt."""

    epochs: Annotated[float | None, typer.Option(metavar="N", show_default="the recipe's", help="Go through the "
                                                 "examples so often.")] = None
    steps: Annotated[int | None, typer.Option(metavar="N", help="Or so many steps.")] = None
    minutes: Annotated[float | None, typer.Option(metavar="M", help="Or so many minutes.")] = None

    def options(self) -> dict[str, Any]:
        return dict(vars(self))
