"""`translate` and `average`: translate text line by line, and average the last checkpoints of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from stemma.cli.common_options import TRAIN, USE, computes
from stemma.cli.fill_embed import ModelArgument
from stemma.cli.options import FileEncoding, OverwriteOption
from stemma.cli.output import JsonOption, emit, format_value
from stemma.cli.stdio import text_output
from stemma.errors import UserError, pluralize


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=USE)(translate)
    app.command(rich_help_panel=TRAIN)(average)


@dataclass(frozen=True)
class SearchOptions:
    """How translations are decoded. The fields are those of `generation.options.TranslationOptions`."""

    beams: Annotated[int, typer.Option(help="Beam size.")] = 4
    length_penalty: Annotated[float | None, typer.Option(show_default="0.6", help="Higher values favour longer "
                                                                                  "translations.")] = None
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the most probable token: faster than beam search, and "
                                                          "worse.")] = False
    n_best: Annotated[int, typer.Option(metavar="N", help="Number of translations per line, best first.")] = 1
    max_extra: Annotated[int, typer.Option(metavar="N", help="Maximum length of a translation: R times the source "
                                                             "length plus N tokens.")] = 50
    max_length_ratio: Annotated[float, typer.Option(metavar="R", help="The R of --max-extra.")] = 1.0
    prefix: Annotated[str, typer.Option(metavar="TEXT", help='Put this before every line, such as "translate English '
                                                             'to German: ".')] = ""
    batch: Annotated[int, typer.Option(metavar="TOKENS", help="Tokens per batch: lines x beams x the longest "
                                                              "line.")] = 8192
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Use a KV cache; without it, decoding is slower and "
                                                                   "gives the same text.")] = True
    crop: Annotated[bool, typer.Option("--crop", help="Truncate lines that are too long.")] = False
    force: Annotated[bool, typer.Option("--force", help="Also translate text that is in the target language.")] = False


@dataclass(frozen=True)
class ScoringOptions:
    """Reference translations, and the metrics."""

    reference: Annotated[list[str] | None, typer.Option(metavar="FILE", help="Reference translations for BLEU and "
                                                        "chrF, line by line; may be repeated.")] = None
    rouge: Annotated[bool, typer.Option("--rouge", help="Also compute ROUGE, for summaries.")] = False
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Lowercase both sides for the scores.")] = False
    bleu_tokenize: Annotated[str, typer.Option(help="BLEU's tokenizer: 13a, intl, zh, char, none...")] = "13a"


@computes
def translate(
    model: ModelArgument, search: SearchOptions, scoring: ScoringOptions, encoded: FileEncoding,
    path: Annotated[list[str] | None, typer.Argument(metavar="PATH", show_default=False,
                                                     help="Text, translated line by line; - is stdin.")] = None,
    text: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Translate this; may be repeated.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the translations here, one per line.")] = None,
    overwrite: OverwriteOption = False, json: JsonOption = False,
) -> None:
    """Translate text line by line with an encoder-decoder: a translator, a summariser, T5.

    An empty line has an empty translation, so that the lines stay aligned.

    Example: stemma translate run test.en --out test.hyp --reference test.de
    """
    from stemma.generation.options import TranslationOptions

    TranslationOptions(**vars(search))  # conflicts are reported before the model is loaded
    if scoring.rouge and not scoring.reference:
        raise UserError("--rouge compares with reference texts; name their file with --reference.")
    if out is not None:
        from stemma.atomic_files import check_output_path

        if out.is_dir():
            raise UserError(f"{out} is a folder; --out is the file to write.")
        check_output_path(out, overwrite)
    lines, names = _lines(path or [], text or [], encoded.encoding, encoded.errors)
    references = [_reference(file, len(lines), encoded.encoding, encoded.errors) for file in scoring.reference or []]
    if references:
        _score([""], [[""]], scoring)  # a missing library is reported now, not after decoding

    import time

    from stemma.corpus.translation_direction import read_directions
    from stemma.device import choose_device
    from stemma.exchange.load import open_model, resolve_model_folder
    from stemma.generation.translate import translate as run_translate

    folder = resolve_model_folder(model)
    loaded = open_model(folder, choose_device())
    start = time.perf_counter()
    translations = run_translate(loaded, lines, directions=read_directions(folder), line_names=names, **vars(search))
    seconds = time.perf_counter() - start
    texts = [translation.text for translation in translations]
    scores = _score(texts, references, scoring) if references else {}
    if out is not None:
        _write(out, texts)
    result = {"model": model, "lines": len(texts), "seconds": seconds, "out": None if out is None else str(out),
              "translations": [{"source": translation.source, "text": translation.text, "tokens": translation.tokens,
                                "log_probability": translation.log_probability,
                                "alternatives": [{"text": alternative.text, "tokens": alternative.tokens,
                                                  "log_probability": alternative.log_probability}
                                                 for alternative in translation.alternatives]}
                               for translation in translations], **scores}

    def human() -> None:
        if out is None:
            for translation in translations:
                print(_one_line(translation.text), file=text_output())
                for alternative in translation.alternatives:
                    print(f"  {_one_line(alternative.text)}", file=text_output())
        else:
            print(f"{pluralize(len(texts), 'line')} in {out} ({seconds:.1f} s, {len(texts) / seconds:,.1f} lines/s)")
        score_lines = list(_format_scores(scores))
        print("\n".join(score_lines), end="\n" if score_lines else "",
              file=sys.stdout if out is not None else sys.stderr)

    emit(result, json, human)


def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder with several checkpoints.")],
    last: Annotated[int, typer.Option(metavar="N", help="Number of checkpoints, newest first.")] = 5,
    out: Annotated[Path | None, typer.Option(metavar="DIR", show_default="RUN/averaged",
                                             help="The model folder to create.")] = None,
    overwrite: OverwriteOption = False, json: JsonOption = False,
) -> None:
    """Average the weights of the last checkpoints of a run. The result is usually better than the last checkpoint.

    Example: stemma average run --last 5 && stemma translate run/averaged test.en
    """
    from stemma.training.average import average as average_checkpoints

    result = average_checkpoints(run, last, out, overwrite)
    emit(result, json, lambda: print(f"{result['out']} is the mean of the checkpoints of the steps "
                                     f"{', '.join(map(format_value, result['steps']))}"))


def _lines(paths: Sequence[str], texts: Sequence[str], encoding: str, errors: str) -> tuple[list[str], list[str]]:
    """The lines and their names for messages: of the files, then of --text."""
    from stemma.text.readers import list_files
    from stemma.text.text_io import display_name

    if not paths and not texts:
        raise UserError("there is nothing to translate; name a file, - for standard input, or give --text.")
    lines, names = [], []
    for file in list_files(paths) if paths else []:
        content = _read(file, encoding, errors)
        if not content:
            raise UserError(f"{display_name(file)} is empty; there is nothing to translate.")
        lines += content
        names += [f"{display_name(file)}, line {number}" for number in range(1, len(content) + 1)]
    names += ["--text" if len(texts) == 1 else f"--text number {number}" for number in range(1, len(texts) + 1)]
    return [*lines, *texts], names


def _reference(path: str, expected: int, encoding: str, errors: str) -> list[str]:
    from stemma.text.readers import list_files

    (file, *more) = list_files([path])
    if more:
        raise UserError(f"{path} is {1 + len(more)} files; a reference is one, with a line for each translation.")
    lines = _read(file, encoding, errors)
    if len(lines) != expected:
        raise UserError(f"{path} has {len(lines):,} line{'' if len(lines) == 1 else 's'} and there "
                        f"{'is' if expected == 1 else 'are'} {expected:,} to translate; a reference must have as "
                        "many lines.")
    return lines


def _read(file: Path, encoding: str, errors: str) -> list[str]:
    """The lines of a file. Only LF ends a line: other Unicode line ends occur inside sentences."""
    from stemma.text.text_io import check_encoding, read_text

    content = "".join(read_text(file, check_encoding(encoding, errors), errors))
    return content.removesuffix("\n").split("\n") if content else []


def _score(texts: Sequence[str], references: Sequence[Sequence[str]], options: ScoringOptions) -> dict[str, Any]:
    from stemma.tasks.metrics.bleu_rouge import summary_scores, translation_scores

    scores: dict[str, Any] = translation_scores(texts, references, options.lowercase, options.bleu_tokenize)
    return {**scores, "rouge": summary_scores(texts, references)} if options.rouge else scores


def _format_scores(scores: dict[str, Any]) -> Iterator[str]:
    for name, label in (("bleu", "BLEU"), ("chrf", "chrF")):
        if name in scores:
            yield f"{label} {scores[name]['score']:.2f}   {scores[name]['signature']}"
    if "rouge" in scores:
        parts = [f"{name.removeprefix('rouge')} {value:.2f}" for name, value in scores["rouge"].items()
                 if name != "signature"]
        yield f"ROUGE {', '.join(parts)}   {scores['rouge']['signature']}"


def _one_line(text: str) -> str:
    return " ".join(text.split("\n"))


def _write(out: Path, texts: Sequence[str]) -> None:
    from stemma.atomic_files import atomic_write, make_folder

    make_folder(out.parent)
    atomic_write(out, "".join(f"{_one_line(text)}\n" for text in texts))
