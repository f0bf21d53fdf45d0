"""`stemma corpus`: tokenise text into a corpus, and print its statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stemma.cli.annotate import annotate
from stemma.cli.options import CorpusText, OverwriteOption, PairsOption
from stemma.cli.output import JsonOption, emit
from stemma.errors import UserError, pluralize

DialogueOption = Annotated[list[str] | None, typer.Option(
    metavar="PATH", show_default=False, help="Dialogues with roles, as JSON lines or yml; may be repeated.")]
RelevanceOption = Annotated[list[str] | None, typer.Option(
    metavar="PATH", show_default=False, help="A table with the columns query, title and label; may be repeated.")]

corpus_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None,
                         help="Tokenise text once, for all recipes that use the same tokenizer.")


@corpus_app.command()
def build(
    tokenizer: Annotated[Path, typer.Option(help="Folder of the tokenizer.", metavar="DIR")],
    out: Annotated[Path, typer.Option(help="Folder to write.", metavar="DIR")],
    text: CorpusText,
    paths: Annotated[list[str] | None, typer.Argument(
        metavar="PATH", show_default=False, help="Text: files, folders, globs, or - for stdin.")] = None,
    dialogue: DialogueOption = None,
    relevance: RelevanceOption = None,
    workers: Annotated[int | None, typer.Option(help="Processes; by default one per core.", metavar="N")] = None,
    sentences: Annotated[str, typer.Option(help="line: a line is a sentence; split: a line end is white space; auto: "
                                                "detect.")] = "auto",
    pairs: PairsOption = False,
    words: Annotated[Path | None, typer.Option(help="Chinese dictionary in jieba's format.", metavar="FILE")] = None,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Tokenise text into a corpus: memory-mapped, checksummed, with document, sentence and word boundaries.

    Parallel text is two line-aligned files (--target), or a table with both sides (--pairs). A corpus can hold running
    text, dialogues and queries with titles, each alone or together.

    Example: stemma corpus build texts/ --tokenizer tok --out corp

    Example: stemma corpus build train.en --target train.de --tokenizer tok --out corp

    Example: stemma corpus build texts/ --dialogue chats.jsonl --relevance clicks.tsv --tokenizer tok --out corp
    """
    from stemma.corpus.build import build_corpus
    from stemma.text.parallel import pair_sources

    paths, dialogue, relevance = paths or [], dialogue or [], relevance or []
    other_sources = {"--dialogue": bool(dialogue), "--relevance": bool(relevance)}
    paired = pairs or bool(text.target)
    text_options = {**text.is_set, "--sentences": sentences != "auto"}
    refuse_unused(paired, {**text_options, **other_sources} if paired else text.paired.is_set)
    unused = [name for name, is_set in text_options.items() if is_set]
    if not paths and any(other_sources.values()) and unused:
        raise UserError(f"{' and '.join(unused)} say how running text is read, and no PATH is given; leave them out.")
    sources = pair_sources(paths, text.target or [], text.columns) if paired else []
    result = build_corpus(
        [] if paired else paths, tokenizer, out, workers=workers, sentences=sentences, user_dictionary=words,
        overwrite=overwrite, pairs=sources, dialogue=dialogue, relevance=relevance, **text.running(), empty=text.empty)
    counts = (f"{pluralize(result['documents'], 'pair')}" if paired else
              f"{pluralize(result['sentences'], 'sentence')}, {pluralize(result['documents'], 'document')}")
    counts += f", {result['dialogues']:,} of them dialogues" if dialogue else ""
    counts += f", {result['judged']:,} queries with titles" if relevance else ""
    emit(result, json, lambda: print(
        f"{result['corpus']}: {pluralize(result['tokens'], 'token')}, {counts}, {result['unknown_rate']:.3%} unknown"))


def refuse_unused(paired: bool, options: dict[str, bool]) -> None:
    """Refuse options of running text for parallel text, and the other way round. `options`: whether each is set."""
    if unused := [name for name, is_set in options.items() if is_set]:
        single = len(unused) == 1
        remedy = f"leave {'it' if single else 'them'} out" if paired else "name --target FILE, or --pairs for a table"
        raise UserError(f"{' and '.join(unused)} {'is' if single else 'are'} for "
                        f"{'running text, and this is parallel' if paired else 'parallel text'}; {remedy}.")


@corpus_app.command()
def info(
    corpus: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the corpus.")],
    json: JsonOption = False,
) -> None:
    """Print counts, vocabulary coverage and lengths of a corpus, and verify the checksums of its files.

    Example: stemma corpus info corp
    """
    from stemma.corpus.info import corpus_info, describe_corpus

    result = corpus_info(corpus)
    emit(result, json, lambda: print(describe_corpus(result)))


corpus_app.command()(annotate)
