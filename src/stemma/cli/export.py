"""`export` and `convert`: models in the formats of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stemma.cli.common_options import USE
from stemma.cli.fill_embed import ModelArgument
from stemma.cli.options import OverwriteOption
from stemma.cli.output import JsonOption, emit
from stemma.errors import pluralize


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=USE)(export)
    app.command(rich_help_panel=USE)(convert)


def export(
    model: ModelArgument,
    format: Annotated[str, typer.Option(metavar="FORMAT", help="arpa: an n-gram model as text, for KenLM and "
                                                               "SRILM. Word vectors: word2vec (text, also fastText's "
                                                               ".vec), word2vec-binary, glove, fasttext (.bin).")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write.")],
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Write a model in a format of other programs.

    In an ARPA file the tokens are words. White space in a token, and a token spelled <s>, </s> or <unk>, is written
    with \\u{...}: the hexadecimal number of a character.

    Word vectors are the rows of the input embedding of any model. Pieces inside words are written with ## before them.

    Example: stemma export run --format arpa --out lm.arpa
    """
    from stemma.exchange.export import export as export_model
    from stemma.exchange.load import open_model

    result = export_model(open_model(model), format, out, overwrite)
    emit(result, json, lambda: print(f"{result['out']}: {result['recipe']} as {result['format']}"
                                     + (f", {result['bytes'] / 1e6:,.1f} MB" if "bytes" in result else "")))


def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An ARPA file, as KenLM, SRILM or `stemma export` write "
                                                              "it; may be compressed (.gz, .xz, .zst).")],
    tokenizer: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the tokenizer whose tokens are the words "
                                                                "of the file.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.")],
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Make a model of an ARPA file and its tokenizer, for every verb that takes a MODEL.

    Example: stemma convert lm.arpa --tokenizer tok --out model
    """
    from stemma.exchange.export import convert as convert_file

    result = convert_file(file, tokenizer, out, overwrite)
    ngrams = ", ".join(pluralize(count, f"{length}-gram") for length, count in enumerate(result["ngrams"], 1))
    emit(result, json, lambda: print(f"{result['model']} is ready: {ngrams}"))
