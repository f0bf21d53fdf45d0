"""`clean` and `overlap`: what goes into a corpus, and what of an evaluation is in it already."""

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
    documents: Annotated[str, typer.Option(help="In FILE, what ends a document: blank, line or file.")] = "blank"


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=TEXT)(clean)
    app.command(rich_help_panel=TEXT)(overlap)


def clean(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Text: files, folders, globs, or - for stdin.")],
    out: Annotated[Path, typer.Option(show_default=False, help="The file to write: .txt or .jsonl.")],
    text: TextOptions,
    rules: Annotated[Path | None, typer.Option(metavar="FILE", help="Rules in TOML: docs/how-to/cleaning.md.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE",
                                                     help="Change one rule, such as min_words=20.")] = None,
    language: Annotated[list[str] | None, typer.Option(help="Keep only this language: en, de, zh, ...; repeat it "
                                                            "for several.")] = None,
    also: Annotated[list[str] | None, typer.Option(help="A filter of datatrove besides: gopher-quality, "
                                                        "gopher-repetition, c4, fineweb.")] = None,
    show: Annotated[int, at_least(0, "Examples of what each step dropped.")] = 0,
    overwrite: OverwriteOption = False, json: JsonOption = False,
) -> None:
    """Clean raw text: normalise it, drop duplicates and what is no prose, and say what each step took.

    Example: stemma clean pages/ --out clean.txt --language en --set min_words=20 --show 3
    """
    from stemma.text.cleaning.clean import clean as run_it
    from stemma.text.cleaning.rules import load_rules

    chosen = load_rules(rules, change or ())
    with progress_stage("cleaning", unit="characters") as work:
        result = run_it(paths, out, rules=chosen, languages=language or (), also=also or (), **text.options(),
                        show=show, overwrite=overwrite, progress=work.set_count)
    emit(result, json, lambda: print(_format_clean(result)))


def overlap(
    corpus: Annotated[list[str], typer.Argument(metavar="CORPUS", help="A corpus folder, or raw text: files, folders, "
                                                                       "globs.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="The evaluation text.")],
    text: EvaluationText,
    n: Annotated[int, typer.Option("--n", help="Words in a row that count as seen.")] = 8,
    false_positives: Annotated[float, typer.Option(help="Share of unseen n-grams that may count as seen.")] = 1e-8,
    limit: Annotated[float, typer.Option(help="A document overlaps if so much of it was seen.")] = 0.5,
    exclude: Annotated[Path | None, typer.Option(metavar="OUT", help="Write FILE's text without the documents that "
                                                                     "overlap: .txt or .jsonl.")] = None,
    show: Annotated[int, at_least(0, "How many of the worst documents to show.")] = 10,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what stands at --exclude.")] = False,
    json: JsonOption = False,
) -> None:
    """How much of an evaluation file stands in a corpus, by a Bloom filter of 8-grams as in GPT-2's study.

    Example: stemma overlap corp test.txt --documents line
    """
    from stemma.corpus.overlap import overlap as measure

    with progress_stage("reading", unit="characters") as work:
        result = measure(corpus, file, n=n, false_positives=false_positives, **text.options(), threshold=limit,
                         show=show,
                         exclude=exclude, overwrite=overwrite, progress=work.set_count)
    emit(result, json, lambda: print(_format_overlap(result)))


def _format_clean(result: dict[str, Any]) -> str:
    kept = result["documents_out"] / result["documents_in"]
    lines = [f"{result['out']}: {result['documents_out']:,} of {pluralize(result['documents_in'], 'document')} "
             f"({kept:.1%}), {result['characters_out']:,} of {pluralize(result['characters_in'], 'character')}, in "
             f"{result['seconds']:.1f} s"]
    took = [step for step in result["steps"] if step["documents"] or step["characters"]]
    rows = [["step", "documents", "characters", ""]]
    for step in took:
        setting = f"{step['step']} = {format_value(step['setting'])}" if step["setting"] is not None else step["step"]
        rows.append([setting, f"{step['documents']:,}", f"{step['characters']:,}",
                     "changed" if step["step"] == "normalise" else "dropped"])
        rows += [["", "", "", f"  {example}"] for example in step["examples"]]
    return "\n".join([*lines, *(f"  {line}" for line in align_columns(rows))])


def _format_overlap(result: dict[str, Any]) -> str:
    n, rate = result["n"], result["false_positives"]
    over = len(result["overlapping_documents"])
    lines = [f"{result['share']:.2%} of the {n}-grams of {result['file']} are in the corpus "
             f"({result['overlapping_n_grams']:,} of {result['n_grams']:,})",
             f"  {over:,} of {pluralize(result['documents'], 'document')} have {result['limit']:.0%} or more of theirs "
             "there"
             + (f"; {result['too_short']:,} are shorter than {n} words" if result["too_short"] else "")]
    if result["exclude"]:
        lines.append(f"  the others are in {result['exclude']}")
    lines += [f"  {line}" for line in align_columns([[f"document {row['document']:,}", f"{row['share']:.1%}",
                                                f"of {row['n_grams']:,}", row["text"]] for row in result["worst"]])]
    sieve = result["filter"]
    lines += [f"  filter: {sieve['n_grams']:,} {n}-grams in {sieve['bytes'] / 1e6:,.1f} MB, {sieve['probes']} probes, "
              f"{sieve['fill']:.1%} full",
              f"  false positives: {rate['hits']:,} in {rate['lookups']:,} lookups of {n}-grams that no text holds "
              f"(so at most {rate['at_most']:.1e}, at 95%); the fill implies {rate['implied']:.1e}, "
              f"wanted {rate['wanted']:.1e}"]
    return "\n".join(lines)
