"""`stemma corpus annotate`: mark phrases, entities and roles as units, so that an objective can mask whole units."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stemma.cli.output import JsonOption, align_columns, at_least, emit
from stemma.errors import UserError, pluralize
from stemma.progress import progress_stage

SOURCES = {"mined": "mined phrases", "lexicon": "entries", "spans": "distinct spans"}


def annotate(
    corpus: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the corpus.")],
    phrases: Annotated[str | None, typer.Option(metavar="mine|FILE", show_default=False, help="mine: from the text. "
                                                "FILE: a lexicon or spans.")] = None,
    entities: Annotated[Path | None, typer.Option(metavar="FILE", show_default=False, help="A lexicon (one entry per "
                                                  "line, optionally a tab and its type) or spans (document, start, "
                                                  "end, type; counted from 0).")] = None,
    roles: Annotated[Path | None, typer.Option(metavar="FILE", show_default=False,
                                               help="Spans whose type is the speaker.")] = None,
    token_field: Annotated[list[str] | None, typer.Option(metavar="NAME=FILE.npy", show_default=False, help="Features "
                                                          "per token: an array with one row per token. May be "
                                                          "repeated.")] = None,
    document_field: Annotated[list[str] | None, typer.Option(metavar="NAME=FILE.npy", show_default=False,
                                                             help="The same per document.")] = None,
    min_count: Annotated[int, typer.Option(help="Mining: minimum count of a phrase.")] = 10,
    threshold: Annotated[float, typer.Option(help="Mining: minimum score (normalised pointwise mutual information: 1 "
                                                  "is always together, 0 is chance).")] = 0.5,
    longest: Annotated[int, typer.Option(help="Mining: maximum number of words in a phrase.")] = 4,
    encoding: Annotated[str, typer.Option(help="Encoding of the files.")] = "utf-8",
    top: Annotated[int, at_least(0, "Number of the most frequent units to show.")] = 10,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace annotations of the same name.")] = False,
    json: JsonOption = False,
) -> None:
    """Mark phrases, entities or speakers in a corpus, for objectives that mask whole units (unit=phrase, unit=entity);
    or add features per token or document, for networks with an input for them ([network.inputs.NAME]).

    Example: stemma corpus annotate corp --phrases mine --entities places.txt
    """
    from stemma.corpus.annotate import annotate as run_annotate

    with progress_stage("annotating", unit="tokens") as work:
        result = run_annotate(corpus, phrases=phrases, entities=entities, speakers=roles, min_count=min_count,
                              threshold=threshold, max_words=longest, encoding=encoding, top=top, overwrite=overwrite,
                              token_fields=_parse_pairs(token_field, "--token-field"),
                              document_fields=_parse_pairs(document_field, "--document-field"),
                              progress=work.set_count)
    emit(result, json, lambda: print(_format_result(result)))


def _parse_pairs(pairs: list[str] | None, option: str) -> dict[str, Path]:
    """The file of each field, from NAME=FILE."""
    files: dict[str, Path] = {}
    for pair in pairs or []:
        name, sign, file = pair.partition("=")
        if not sign or not file or name in files:
            raise UserError(f"{option} {pair}: " + (f"{name} is given twice; name each field once." if name in files
                                                    else f"must be NAME=FILE.npy, such as {option} vectors=v.npy."))
        files[name] = Path(file)
    return files


def _format_result(result: dict[str, Any]) -> str:
    lines = []
    for name, side in result["annotations"].items():
        counts = f"{side['found']:,} of {side['entries']:,} {SOURCES[side['source']]} are in the text"
        rule = (f" ({side['score']} of at least {side['threshold']:g}, {side['min_count']:,} times or more)"
                if side["source"] == "mined" else "")
        lines.append(f"{result['corpus']}: {name}: {counts}{rule}")
        lines.append(f"  {pluralize(side['units'], 'unit')}, {pluralize(side['tokens'], 'token')} "
                     f"({side['share']:.2%} of all)")
        if "types" in side:
            lines.append("  " + ", ".join(f"{kind} {count:,}" for kind, count in side["types"].items()))
        rows = [[unit["text"], f"{unit['count']:,}",
                 f"{unit['score']:.2f}" if "score" in unit else unit.get("type", "")] for unit in side["top"]]
        lines += [f"    {line}" for line in align_columns(rows)]
    lines += [f"{result['corpus']}: {name}: {pluralize(field['size'], 'number')} a {field['per']}"
              for name, field in result.get("fields", {}).items()]
    return "\n".join(lines)
