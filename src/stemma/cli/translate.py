"""`translate` and `average`: a text for each line, and the mean of a run's last checkpoints to write it with."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from stemma.cli.common_options import TRAIN, USE, computes
from stemma.cli.fill_embed import ModelArgument
from stemma.cli.options import Encoded, OverwriteOption
from stemma.cli.output import JsonOption, emit, format_value
from stemma.cli.stdio import text_output
from stemma.errors import UserError, pluralize


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=USE)(translate)
    app.command(rich_help_panel=TRAIN)(average)


@dataclass(frozen=True)
class Search:
    """How translations are searched for; the names are those of `generation.options.TranslateOptions`."""

    beams: Annotated[int, typer.Option(help="Search with so many beams.")] = 4
    length_penalty: Annotated[float | None, typer.Option(show_default="0.6", help="The higher, the longer the "
                                                                                  "translations that win.")] = None
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the likeliest token each time: faster, and worse than "
                                                          "beams.")] = False
    n_best: Annotated[int, typer.Option(metavar="N", help="Give the N best of each line.")] = 1
    max_extra: Annotated[int, typer.Option(metavar="N", help="A translation has at most N tokens more than its "
                                                             "source,")] = 50
    max_length_ratio: Annotated[float, typer.Option(metavar="R", help="which is counted R times.")] = 1.0
    prefix: Annotated[str, typer.Option(metavar="TEXT", help='Put this before every line, such as "translate English '
                                                             'to German: ".')] = ""
    batch: Annotated[int, typer.Option(metavar="TOKENS", help="Lines x beams x the longest of them, at the same "
                                                              "time.")] = 8192
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Read every token once, or all again each time "
                                                                   "(slow; the same text).")] = True
    crop: Annotated[bool, typer.Option("--crop", help="Of a line that is too long read the beginning.")] = False
    force: Annotated[bool, typer.Option("--force", help="Translate also what looks like the target language.")] = False


@dataclass(frozen=True)
class Scoring:
    """What translations are compared with, and how."""

    reference: Annotated[list[str] | None, typer.Option(metavar="FILE", help="Score against these lines: BLEU and "
                                                        "chrF; several files are several references.")] = None
    rouge: Annotated[bool, typer.Option("--rouge", help="Score summaries: ROUGE as well.")] = False
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Score without regard to capitals.")] = False
    bleu_tokenize: Annotated[str, typer.Option(help="How BLEU parts words: 13a, intl, zh, char, none...")] = "13a"


@computes
def translate(
    model: ModelArgument, search: Search, scoring: Scoring, encoded: Encoded,
    path: Annotated[list[str] | None, typer.Argument(metavar="PATH", show_default=False,
                                                     help="Text, a line each; - is standard input.")] = None,
    text: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Translate this; may be given several "
                                                                        "times.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the translations here, a line each.")] = None,
    overwrite: OverwriteOption = False, json: JsonOption = False,
) -> None:
    """Translate text line by line with a model that writes from a source: a translator, a summariser, T5.

    An empty line stays empty, so that lines keep their counterparts.

    Example: stemma translate run test.en --out test.hyp --reference test.de
    """
    from stemma.generation.options import TranslationOptions

    TranslationOptions(**vars(search))  # what cannot be followed is said before a model is loaded
    if scoring.rouge and not scoring.reference:
        raise UserError("--rouge compares with what people wrote; name it with --reference.")
    if out is not None:
        from stemma.atomic_files import check_output_path

        if out.is_dir():
            raise UserError(f"{out} is a folder; --out is the file to write.")
        check_output_path(out, overwrite)
    lines, names = _lines(path or [], text or [], encoded.encoding, encoded.errors)
    sides = [_reference(file, len(lines), encoded.encoding, encoded.errors) for file in scoring.reference or []]
    if sides:
        _score([""], [[""]], scoring)  # what is missing is said now, not after an hour

    import time

    from stemma.corpus.translation_direction import read_directions
    from stemma.device import choose_device
    from stemma.exchange.load import open_model, resolve_model_folder
    from stemma.generation.translate import translate as run_it

    folder = resolve_model_folder(model)
    loaded = open_model(folder, choose_device())
    began = time.perf_counter()
    made = run_it(loaded, lines, directions=read_directions(folder), line_names=names, **vars(search))
    seconds = time.perf_counter() - began
    scores = _score([one.text for one in made], sides, scoring) if sides else {}
    if out is not None:
        _write(out, [one.text for one in made])
    result = {"model": model, "lines": len(made), "seconds": seconds, "out": None if out is None else str(out),
              "translations": [{"source": one.source, "text": one.text, "tokens": one.tokens,
                                "log_probability": one.log_probability,
                                "alternatives": [{"text": other.text, "tokens": other.tokens,
                                                  "log_probability": other.log_probability}
                                                 for other in one.alternatives]} for one in made], **scores}

    def human() -> None:
        if out is None:
            for one in made:
                print(_one_line(one.text), file=text_output())
                for other in one.alternatives:
                    print(f"  {_one_line(other.text)}", file=text_output())
        else:
            print(f"{pluralize(len(made), 'line')} in {out} ({seconds:.1f} s, {len(made) / seconds:,.1f} lines/s)")
        said = list(_format_scores(scores))
        print("\n".join(said), end="\n" if said else "", file=sys.stdout if out is not None else sys.stderr)

    emit(result, json, human)


def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder with several checkpoints.")],
    last: Annotated[int, typer.Option(metavar="N", help="The newest N of them.")] = 5,
    out: Annotated[Path | None, typer.Option(metavar="DIR", show_default="RUN/averaged",
                                             help="The model folder to make.")] = None,
    overwrite: OverwriteOption = False, json: JsonOption = False,
) -> None:
    """Average the weights of a run's last checkpoints: a better model than the last one alone, at no cost.

    Example: stemma average run --last 5 && stemma translate run/averaged test.en
    """
    from stemma.training.average import average as run_it

    result = run_it(run, last, out, overwrite)
    emit(result, json, lambda: print(f"{result['out']} is the mean of the checkpoints of the steps "
                                     f"{', '.join(map(format_value, result['steps']))}"))


def _lines(paths: Sequence[str], texts: Sequence[str], encoding: str, errors: str) -> tuple[list[str], list[str]]:
    """Every line with what to call it: those of the files, then those of the command line."""
    from stemma.text.readers import list_files
    from stemma.text.text_io import display_name

    if not paths and not texts:
        raise UserError("there is nothing to translate; name a file, - for standard input, or give --text.")
    lines, names = [], []
    for file in list_files(paths) if paths else []:
        found = _read(file, encoding, errors)
        if not found:
            raise UserError(f"{display_name(file)} is empty; there is nothing to translate.")
        lines += found
        names += [f"{display_name(file)}, line {number}" for number in range(1, len(found) + 1)]
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
                        f"{'is' if expected == 1 else 'are'} {expected:,} to translate; line by line they must belong "
                        "together.")
    return lines


def _read(file: Path, encoding: str, errors: str) -> list[str]:
    """The lines of a file. Only LF ends one: other line ends of Unicode occur inside sentences."""
    from stemma.text.text_io import check_encoding, read_text

    content = "".join(read_text(file, check_encoding(encoding, errors), errors))
    return content.removesuffix("\n").split("\n") if content else []


def _score(texts: Sequence[str], references: Sequence[Sequence[str]], asked: Scoring) -> dict[str, Any]:
    from stemma.tasks.metrics.bleu_rouge import summary_scores, translation_scores

    scores: dict[str, Any] = translation_scores(texts, references, asked.lowercase, asked.bleu_tokenize)
    return {**scores, "rouge": summary_scores(texts, references)} if asked.rouge else scores


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
