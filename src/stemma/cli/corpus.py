"""`stemma corpus`: tokenise text once, and look at what came out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stemma.cli.annotate import annotate
from stemma.cli.options import AnyText, OverwriteOption, PairsOption
from stemma.cli.output import JsonOption, emit
from stemma.errors import UserError, pluralize

DialogueOption = Annotated[list[str] | None, typer.Option(
    metavar="PATH", show_default=False, help="Dialogues, JSON lines or yml, with who says what; may be repeated.")]
RelevanceOption = Annotated[list[str] | None, typer.Option(
    metavar="PATH", show_default=False, help="A table of query, title and label; may be repeated.")]

corpus_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None,
                         help="Tokenise text once, for every recipe that takes its tokenizer.")


@corpus_app.command()
def build(
    tokenizer: Annotated[Path, typer.Option(help="Folder of the tokenizer.", metavar="DIR")],
    out: Annotated[Path, typer.Option(help="Where the corpus goes.", metavar="DIR")],
    text: AnyText,
    paths: Annotated[list[str] | None, typer.Argument(
        metavar="PATH", show_default=False, help="Text: files, folders, globs, or - for stdin.")] = None,
    dialogue: DialogueOption = None,
    relevance: RelevanceOption = None,
    workers: Annotated[int | None, typer.Option(help="Processes; by default one per core.", metavar="N")] = None,
    sentences: Annotated[str, typer.Option(help="A sentence is a line, or lines are split; auto looks.")] = "auto",
    pairs: PairsOption = False,
    words: Annotated[Path | None, typer.Option(help="Chinese words, in jieba's format.", metavar="FILE")] = None,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Tokenise text into a corpus: memory-mapped, checksummed, with document, sentence and word boundaries.

    Parallel text is two files whose lines belong together (--target), or a table of both (--pairs). Dialogues and
    queries with titles go into one corpus with running text, or stand alone.

    Example: stemma corpus build texts/ --tokenizer tok --out corp

    Example: stemma corpus build train.en --target train.de --tokenizer tok --out corp

    Example: stemma corpus build texts/ --dialogue chats.jsonl --relevance clicks.tsv --tokenizer tok --out corp
    """
    from stemma.corpus.build import build_corpus
    from stemma.text.parallel import pair_sources

    paths, dialogue, relevance = paths or [], dialogue or [], relevance or []
    others = {"--dialogue": bool(dialogue), "--relevance": bool(relevance)}
    paired = pairs or bool(text.target)
    for_text = {**text.stated, "--sentences": sentences != "auto"}
    refuse_unused(paired, {**for_text, **others} if paired else text.paired.stated)
    if not paths and any(others.values()) and (unused := [name for name, stated in for_text.items() if stated]):
        raise UserError(f"{' and '.join(unused)} say how running text is read, and no PATH is given; leave them out.")
    sources = pair_sources(paths, text.target or [], text.columns) if paired else []
    result = build_corpus(
        [] if paired else paths, tokenizer, out, workers=workers, sentences=sentences, user_dictionary=words,
        overwrite=overwrite, pairs=sources, dialogue=dialogue, relevance=relevance, **text.running(), empty=text.empty)
    what = (f"{pluralize(result['documents'], 'pair')}" if paired else
            f"{pluralize(result['sentences'], 'sentence')}, {pluralize(result['documents'], 'document')}")
    what += f", {result['dialogues']:,} of them dialogues" if dialogue else ""
    what += f", {result['judged']:,} queries with titles" if relevance else ""
    emit(result, json, lambda: print(
        f"{result['corpus']}: {pluralize(result['tokens'], 'token')}, {what}, {result['unknown_rate']:.3%} unknown"))


def refuse_unused(paired: bool, given: dict[str, bool]) -> None:
    """Options of running text where pairs are read, or the other way round."""
    if unused := [name for name, stated in given.items() if stated]:
        one = len(unused) == 1
        way_out = f"leave {'it' if one else 'them'} out" if paired else "name --target FILE, or --pairs for a table"
        raise UserError(f"{' and '.join(unused)} {'is' if one else 'are'} for "
                        f"{'running text, and this is parallel' if paired else 'parallel text'}; {way_out}.")


@corpus_app.command()
def info(
    corpus: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the corpus.")],
    json: JsonOption = False,
) -> None:
    """Counts, vocabulary coverage and lengths of a corpus; every file's checksum is verified on the way.

    Example: stemma corpus info corp
    """
    from stemma.corpus.info import corpus_info, describe_corpus

    result = corpus_info(corpus)
    emit(result, json, lambda: print(describe_corpus(result)))


corpus_app.command()(annotate)
