"""`clean` and `overlap`: filter text for a corpus, and measure how much evaluation text a corpus contains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from stemma.cli.common_options import TEXT
from stemma.cli.options import OverwriteOption, TextOptions
from stemma.cli.output import JsonOption, align_columns, at_least, emit, format_value
from stemma.errors import pluralize
from stemma.progress import progress_stage


@dataclass(frozen=True)
class EvaluationText(TextOptions):
    documents: Annotated[str, typer.Option(help="What ends a document in FILE: blank (line), line or file.")] = "blank"


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=TEXT)(clean)
    app.command(rich_help_panel=TEXT)(overlap)


def clean(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Text: files, folders, globs, or - for stdin.")],
    out: Annotated[Path, typer.Option(show_default=False, help="The file to write: .txt or .jsonl.")],
    text: TextOptions,
    rules: Annotated[Path | None, typer.Option(metavar="FILE", help="Rules in TOML: docs/how-to/cleaning.md.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE",
                                                     help="Change a rule, such as min_words=20; may be "
                                                          "repeated.")] = None,
    language: Annotated[list[str] | None, typer.Option(help="Keep only this language: en, de, zh, ...; may be "
                                                            "repeated.")] = None,
    also: Annotated[list[str] | None, typer.Option(help="An additional datatrove filter: gopher-quality, "
                                                        "gopher-repetition, c4, fineweb.")] = None,
    show: Annotated[int, at_least(0, "Dropped examples to print per step")] = 0,
    overwrite: OverwriteOption = False, json: JsonOption = False,
) -> None:
    """Clean raw text: normalise it, drop duplicates and text that is not prose, and count what each step drops.

    Example: stemma clean pages/ --out clean.txt --language en --set min_words=20 --show 3
    """
    from stemma.text.cleaning.clean import clean as run_clean
    from stemma.text.cleaning.rules import load_rules

    resolved_rules = load_rules(rules, change or ())
    with progress_stage("cleaning", unit="characters") as work:
        result = run_clean(paths, out, rules=resolved_rules, languages=language or (), also=also or (),
                           **text.options(), show=show, overwrite=overwrite, progress=work.set_count)
    emit(result, json, lambda: print(_format_clean(result)))


def overlap(
    corpus: Annotated[list[str], typer.Argument(metavar="CORPUS", help="A corpus folder, or raw text: files, folders, "
                                                                       "globs.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="The evaluation text.")],
    text: EvaluationText,
    n: Annotated[int, typer.Option("--n", help="Length of the n-grams in words.")] = 8,
    false_positives: Annotated[float, typer.Option(help="Maximum false-positive rate of the Bloom filter.")] = 1e-8,
    limit: Annotated[float, typer.Option(help="A document overlaps if at least this fraction of its n-grams is in the "
                                              "corpus.")] = 0.5,
    exclude: Annotated[Path | None, typer.Option(metavar="OUT", help="Write FILE's text without the documents that "
                                                                     "overlap: .txt or .jsonl.")] = None,
    show: Annotated[int, at_least(0, "Number of documents to show, largest overlap first")] = 10,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --exclude.")] = False,
    json: JsonOption = False,
) -> None:
    """Measure how much of an evaluation file a corpus contains, with a Bloom filter of 8-grams as in the GPT-2 paper.

    Example: stemma overlap corp test.txt --documents line
    """
    from stemma.corpus.overlap import overlap as measure_overlap

    with progress_stage("reading", unit="characters") as work:
        result = measure_overlap(corpus, file, n=n, false_positives=false_positives, **text.options(), threshold=limit,
                                 show=show, exclude=exclude, overwrite=overwrite, progress=work.set_count)
    emit(result, json, lambda: print(_format_overlap(result)))


def _format_clean(result: dict[str, Any]) -> str:
    kept_fraction = result["documents_out"] / result["documents_in"]
    lines = [f"{result['out']}: {result['documents_out']:,} of {pluralize(result['documents_in'], 'document')} "
             f"({kept_fraction:.1%}), {result['characters_out']:,} of "
             f"{pluralize(result['characters_in'], 'character')}, in {result['seconds']:.1f} s"]
    effective = [step for step in result["steps"] if step["documents"] or step["characters"]]
    rows = [["step", "documents", "characters", ""]]
    for step in effective:
        setting = f"{step['step']} = {format_value(step['setting'])}" if step["setting"] is not None else step["step"]
        rows.append([setting, f"{step['documents']:,}", f"{step['characters']:,}",
                     "changed" if step["step"] == "normalise" else "dropped"])
        rows += [["", "", "", f"  {example}"] for example in step["examples"]]
    return "\n".join([*lines, *(f"  {line}" for line in align_columns(rows))])


def _format_overlap(result: dict[str, Any]) -> str:
    n, rate = result["n"], result["false_positives"]
    overlapping = len(result["overlapping_documents"])
    lines = [f"{result['share']:.2%} of the {n}-grams of {result['file']} are in the corpus "
             f"({result['overlapping_n_grams']:,} of {result['n_grams']:,})",
             f"  {overlapping:,} of {pluralize(result['documents'], 'document')} have {result['limit']:.0%} or more of "
             f"their {n}-grams in the corpus"
             + (f"; {result['too_short']:,} are shorter than {n} words" if result["too_short"] else "")]
    if result["exclude"]:
        lines.append(f"  the others are in {result['exclude']}")
    rows = [[f"document {row['document']:,}", f"{row['share']:.1%}", f"of {row['n_grams']:,}", row["text"]]
            for row in result["worst"]]
    lines += [f"  {line}" for line in align_columns(rows)]
    bloom = result["filter"]
    lines += [f"  filter: {bloom['n_grams']:,} {n}-grams in {bloom['bytes'] / 1e6:,.1f} MB, {bloom['probes']} probes, "
              f"{bloom['fill']:.1%} full",
              f"  false positives: {rate['hits']:,} in {rate['lookups']:,} lookups of {n}-grams of random words "
              f"(at most {rate['at_most']:.1e}, at 95%); the fill implies {rate['implied']:.1e}, "
              f"requested {rate['wanted']:.1e}"]
    return "\n".join(lines)
