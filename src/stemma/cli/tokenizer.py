"""`stemma tokenizer`: train a tokenizer, and print its properties."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stemma.cli.completion import recipe_names
from stemma.cli.corpus import refuse_unused
from stemma.cli.options import OverwriteOption, PairOptions, PairsOption, TextOptions
from stemma.cli.output import JsonOption, align_columns, emit
from stemma.errors import pluralize

if TYPE_CHECKING:
    from stemma.text.tokenizer import Tokenizer

tokenizer_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None,
                            help="Train a tokenizer, or print its properties.")


@tokenizer_app.command()
def train(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Text: files, folders, globs, or - for stdin.")],
    out: Annotated[Path, typer.Option(help="Folder to write.", metavar="DIR")],
    text: TextOptions, pairing: PairOptions,
    kind: Annotated[str | None, typer.Option(
        help="wordpiece, bpe, byte_bpe, unigram, word or character.", metavar="KIND")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Vocabulary size with special tokens.", metavar="N")] = None,
    recipe: Annotated[str | None, typer.Option(
        "--for", metavar="RECIPE", autocompletion=recipe_names,
        help="Take the defaults and the special tokens from this recipe.")] = None,
    lowercase: Annotated[bool | None, typer.Option(
        "--lowercase/--no-lowercase", help="Lowercase the text; by default as in the recipe, else no.")] = None,
    cjk_spacing: Annotated[bool | None, typer.Option(
        "--cjk-spacing/--no-cjk-spacing", help="Split around each Chinese character (wordpiece, word); the default.",
        show_default=False)] = None,
    simplify: Annotated[bool | None, typer.Option(
        "--simplify/--no-simplify", help="Convert traditional to simplified Chinese first, with OpenCC.")] = None,
    pairs: PairsOption = False,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Train a tokenizer on text. Its vocabulary has all special tokens, or with --for those of the recipe.

    Parallel text gets one vocabulary for both sides: name both files, or a table with --pairs.

    Example: stemma tokenizer train texts/ --kind wordpiece --vocab-size 30522 --lowercase --out tok
    """
    from stemma.atomic_files import atomic_folder, check_output_path
    from stemma.errors import UserError
    from stemma.text.parallel import pair_sources, read_pairs
    from stemma.text.readers import read_passages
    from stemma.text.special_tokens import SPECIAL_TOKENS
    from stemma.text.train_tokenizer import CJK_SPACING_KINDS, train_tokenizer

    start = time.perf_counter()
    default_spacing, roles = True, None
    if recipe is not None:
        from stemma import recipe_loading

        resolved = recipe_loading.recipe(recipe)
        settings = resolved.settings.tokenizer
        kind = settings.kind if kind is None else kind
        vocab_size = settings.vocab_size if vocab_size is None else vocab_size
        lowercase = settings.lowercase if lowercase is None else lowercase
        simplify = settings.simplify if simplify is None else simplify
        default_spacing, roles = settings.cjk_spacing, recipe_loading.required_special_tokens(resolved)
    if kind is None or vocab_size is None:
        missing = [flag for flag, value in (("--kind", kind), ("--vocab-size", vocab_size)) if value is None]
        raise UserError(f"{' and '.join(missing)} must be given; or name a recipe that has them with --for RECIPE.")
    if cjk_spacing is not None and kind in SPECIAL_TOKENS and kind not in CJK_SPACING_KINDS:
        raise UserError(f"a {kind} tokenizer puts no spaces around Chinese characters; "
                        f"leave --cjk-spacing out, or choose --kind {' or '.join(CJK_SPACING_KINDS)}.")
    refuse_unused(pairs, text.is_set if pairs else pairing.is_set)
    check_output_path(out, overwrite)
    texts: Iterator[str]
    if pairs:  # one vocabulary for both sides
        sides = read_pairs(pair_sources(paths, columns=pairing.columns), encoding=text.encoding, errors=text.errors,
                           empty=pairing.empty)
        texts = chain.from_iterable((pair.source, pair.target) for pair in sides)
    else:
        texts = (passage.text for passage in read_passages(paths, **text.options()))
    tokenizer = train_tokenizer(
        texts, kind, vocab_size, lowercase=bool(lowercase), roles=roles, simplify=bool(simplify),
        cjk_spacing=default_spacing if cjk_spacing is None else cjk_spacing,
        progress=sys.stderr.isatty() and not json)
    with atomic_folder(out, overwrite) as folder:
        tokenizer.save(folder)
    result = {"out": str(out), "requested": vocab_size, **_properties(tokenizer),
              "seconds": round(time.perf_counter() - start, 3)}
    emit(result, json, lambda: print(
        f"{out}: {tokenizer.vocab_size:,} {kind} pieces, {len(tokenizer.special_ids)} of them special, "
        f"in {result['seconds']:.1f} s"))


@tokenizer_app.command()
def info(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="Folder or file of a tokenizer, of any library.")],
    json: JsonOption = False,
) -> None:
    """Print kind, size and special tokens of a tokenizer: tokenizer.json, vocab.txt, vocab.json + merges.txt, .model.

    Example: stemma tokenizer info tok
    """
    from stemma.text.simplify_chinese import SIMPLIFY_NOTICE
    from stemma.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(path)
    result = {"tokenizer": str(path), **_properties(tokenizer), "fingerprint": tokenizer.fingerprint}

    def human() -> None:
        case = "lowercased" if tokenizer.lowercase else "case-sensitive"
        print(f"{path}: {tokenizer.kind}, {pluralize(tokenizer.vocab_size, 'piece')}, {case}")
        if tokenizer.simplify:
            print(f"  {SIMPLIFY_NOTICE}")
        rows = [(f"  {role}", tokenizer.id_to_token(token_id), str(token_id))
                for role, token_id in tokenizer.special_token_ids.items()]
        print("\n".join(align_columns(rows)))
        if len(tokenizer.sentinels) > 1:
            print(f"  ... and {len(tokenizer.sentinels) - 1} more sentinels")

    emit(result, json, human)


def _properties(tokenizer: Tokenizer) -> dict[str, Any]:
    return {**tokenizer.settings(), "roles": tokenizer.special_token_ids, "sentinels": len(tokenizer.sentinels),
            "special_tokens": len(tokenizer.special_ids)}
