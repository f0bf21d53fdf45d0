"""`senses`: nearest contexts of an ambiguous word, by static and by contextual vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stemma.cli.common_options import TASKS, computes
from stemma.cli.options import FileEncoding, OverwriteOption
from stemma.cli.output import JsonOption, align_columns, at_least, emit

ModelsArgument = Annotated[list[str], typer.Argument(metavar="MODEL...", show_default=False,
                                                     help="Run folders, their model/, or Hugging Face folders.")]
LayersOption = Annotated[list[str] | None, typer.Option(
    "--layer", metavar="N|static|mean|all", show_default="static and the last one", help="Layer of the vectors, may be "
    "repeated: 0 is the embedding, -1 the last layer, static the token embedding before positions, mean the mean of "
    "all layers, all each of them.")]


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=TASKS)(senses)


@computes
def senses(models: ModelsArgument,
           word: Annotated[str, typer.Argument(metavar="WORD", help="The word, such as bank or 苹果.")],
           file: Annotated[str, typer.Argument(metavar="FILE", help="A sentence on each line; after a tab the sense of "
                                               "the word, if you know it. - is standard input.")],
           encoded: FileEncoding,
           layer: LayersOption = None,
           neighbours: Annotated[int, at_least(1, "Number of nearest contexts of each occurrence")] = 3,
           show: Annotated[int, at_least(0, "Number of occurrences in the table; --json has all", metavar="N")] = 8,
           limit: Annotated[int, at_least(2, "Compare only the first N occurrences", metavar="N")] = 1000,
           match_case: Annotated[bool, typer.Option("--match-case", help="Apple is another word than apple.")] = False,
           plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.svg", show_default=False, help="Also draw "
                                                     "the occurrences, two principal components for each "
                                                     "model.")] = None,
           overwrite: OverwriteOption = False,
           json: JsonOption = False) -> None:
    """Find the nearest contexts of an ambiguous word: does a model tell its senses apart?

    A static vector is the same in all contexts, so all of them tie. A contextual vector is the mean of the hidden
    states of the word's tokens. With senses in FILE, the share of nearest contexts with the same sense stands beside
    the chance level, and beside nearest contexts by common words (TF-IDF).

    Example: stemma senses run bank sentences.tsv --plot bank.svg
    """
    from stemma.atomic_files import atomic_write, check_output_path
    from stemma.evaluation.senses import senses as find_senses

    if plot is not None:
        check_output_path(plot, overwrite)
    result = find_senses(models, word, file, layers=layer, neighbours=neighbours, limit=limit, match_case=match_case,
                         **encoded.options())
    if plot is not None:
        from stemma.lab.report.senses_plot import draw_senses

        atomic_write(plot, draw_senses(result))
        result["plot"] = str(plot)
    emit(result, json, lambda: _show(result, show))


def _show(result: dict[str, Any], show: int) -> None:
    from stemma.evaluation.word_occurrences import Occurrence

    occurrences = [Occurrence(**item) for item in result["occurrences"]]

    def describe(index: int) -> str:
        occurrence = occurrences[index]
        sense = f"  ({occurrence.sense})" if occurrence.sense else ""
        return f"line {occurrence.line:<4} {occurrence.context}{sense}"

    for index in range(min(show, len(occurrences))):
        print(describe(index))
        rows = []
        for model in result["models"]:
            if model["tied"]:
                rows.append((_name(model), "", f"one vector: all {model['ties'][index]} other contexts tie"))
                continue
            for rank, neighbour in enumerate(model["neighbours"][index]):
                rows.append(("" if rank else _name(model), f"{neighbour['similarity']:.3f}",
                             describe(neighbour["occurrence"])))
        print("\n".join(f"    {line}" for line in align_columns(rows)))
    if len(occurrences) > show:
        print(f"{show} of {len(occurrences):,} occurrences; --show N prints more, --json all")
    if result["chance"] is None:
        print("no senses in the file: write one after a tab, and the share of nearest contexts with the same sense "
              "is counted")
    else:
        counted = ", ".join(f"{sense} {count:,}" for sense, count in result["senses"].items())
        shares = [("nearest context has the same sense", ""),
                  *((_name(model), f"{model['same_sense']:.1%}") for model in result["models"]),
                  ("common words (TF-IDF)", f"{result['words']:.1%}"), ("chance level", f"{result['chance']:.1%}")]
        print("\n".join(align_columns(shares)) + f"\nsenses: {counted}")
    if "plot" in result:
        print(f"{result['plot']} is the picture")


def _name(model: dict[str, Any]) -> str:
    layer = {"static": "static", "mean": "mean of layers"}.get(model["layer"], f"layer {model['layer']}")
    return f"{model['model']}, {layer}"
