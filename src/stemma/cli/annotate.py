"""`stemma corpus annotate`: mark what belongs together, so that it can be hidden together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stemma.cli.output import JsonOption, align_columns, at_least, emit
from stemma.errors import UserError, pluralize
from stemma.progress import progress_stage

SOURCES = {"mined": "phrases found", "lexicon": "entries", "spans": "different spans"}


def annotate(
    corpus: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the corpus.")],
    phrases: Annotated[str | None, typer.Option(metavar="mine|FILE", show_default=False, help="Mine phrases from the "
                                                "text, or read a lexicon or spans.")] = None,
    entities: Annotated[Path | None, typer.Option(metavar="FILE", show_default=False, help="A lexicon (an entry a "
                                                  "line, then perhaps a tab and its type) or spans (document, start, "
                                                  "end, type; counted from 0).")] = None,
    roles: Annotated[Path | None, typer.Option(metavar="FILE", show_default=False,
                                               help="Spans with who speaks there as their type.")] = None,
    token_field: Annotated[list[str] | None, typer.Option(metavar="NAME=FILE.npy", show_default=False, help="Numbers "
                                                          "beside each token: an array with a row for each. May be "
                                                          "repeated.")] = None,
    document_field: Annotated[list[str] | None, typer.Option(metavar="NAME=FILE.npy", show_default=False,
                                                             help="The same beside each document.")] = None,
    min_count: Annotated[int, typer.Option(help="Mining: how often a phrase must occur.")] = 10,
    threshold: Annotated[float, typer.Option(help="Mining: the least score (normalised pointwise mutual information: 1 "
                                                  "is always together, 0 is chance).")] = 0.5,
    longest: Annotated[int, typer.Option(help="Mining: the most words of a phrase.")] = 4,
    encoding: Annotated[str, typer.Option(help="Of the files.")] = "utf-8",
    top: Annotated[int, at_least(0, "How many of the most frequent to show.")] = 10,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace marks of the same name.")] = False,
    json: JsonOption = False,
) -> None:
    """Mark phrases, entities or speakers in a corpus, for tasks that hide whole units (unit=phrase, unit=entity); or
    lay numbers beside its tokens or documents, for inputs of a network that read them ([network.inputs.NAME]).

    Example: stemma corpus annotate corp --phrases mine --entities places.txt
    """
    from stemma.corpus.annotate import annotate as run_it

    with progress_stage("annotating", unit="tokens") as work:
        result = run_it(corpus, phrases=phrases, entities=entities, speakers=roles, min_count=min_count,
                        threshold=threshold, max_words=longest, encoding=encoding, top=top, overwrite=overwrite,
                        token_fields=_parse_pairs(token_field, "--token-field"),
                        document_fields=_parse_pairs(document_field, "--document-field"), progress=work.set_count)
    emit(result, json, lambda: print(_format_result(result)))


def _parse_pairs(pairs: list[str] | None, option: str) -> dict[str, Path]:
    """NAME=FILE pairs by name."""
    found: dict[str, Path] = {}
    for pair in pairs or []:
        name, sign, file = pair.partition("=")
        if not sign or not file or name in found:
            raise UserError(f"{option} {pair}: " + (f"{name} is given twice; name each field once." if name in found
                                                    else f"must be NAME=FILE.npy, such as {option} vectors=v.npy."))
        found[name] = Path(file)
    return found


def _format_result(result: dict[str, Any]) -> str:
    lines = []
    for name, side in result["annotations"].items():
        what = f"{side['found']:,} of {side['entries']:,} {SOURCES[side['source']]} are in the text"
        rule = (f" ({side['score']} of at least {side['threshold']:g}, {side['min_count']:,} times or more)"
                if side["source"] == "mined" else "")
        lines.append(f"{result['corpus']}: {name}: {what}{rule}")
        lines.append(f"  {pluralize(side['units'], 'unit')}, {pluralize(side['tokens'], 'token')} "
                     f"({side['share']:.2%} of all)")
        if "types" in side:
            lines.append("  " + ", ".join(f"{kind} {count:,}" for kind, count in side["types"].items()))
        rows = [[one["text"], f"{one['count']:,}", f"{one['score']:.2f}" if "score" in one else one.get("type", "")]
                for one in side["top"]]
        lines += [f"    {line}" for line in align_columns(rows)]
    lines += [f"{result['corpus']}: {name}: {pluralize(field['size'], 'number')} a {field['per']}"
              for name, field in result.get("fields", {}).items()]
    return "\n".join(lines)
