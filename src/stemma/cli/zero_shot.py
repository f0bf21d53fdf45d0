"""`perplexity`, `cloze` and `prompt`: what a language model knows, without training it further."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stemma.cli.common_options import TASKS, USE, computes
from stemma.cli.fill_embed import ModelArgument
from stemma.cli.options import Encoded, OverwriteOption, SeedOption, TextOptions
from stemma.cli.output import JsonOption, align_columns, at_least, emit, format_value
from stemma.errors import pluralize
from stemma.progress import progress_stage

if TYPE_CHECKING:
    from stemma.model import Model

LengthOption = Annotated[int | None, typer.Option(metavar="N", help="Tokens read at a time; by default as trained.")]
LimitOption = Annotated[int | None, at_least(1, "Ask only the first so many.", metavar="N")]


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=USE)(perplexity)
    app.command(rich_help_panel=TASKS)(cloze)
    app.command(rich_help_panel=TASKS)(prompt)


@computes
def perplexity(model: ModelArgument,
               path: Annotated[list[str], typer.Argument(metavar="PATH", help="Text: files, folders, globs, or -.")],
               text: TextOptions,
               stride: Annotated[int | None, typer.Option(
                   metavar="N", help="How far the window moves on; smaller sees more and takes longer. By default half "
                                     "the length.")] = None,
               length: LengthOption = None,
               memory: Annotated[int | None, typer.Option(
                   metavar="N", help="Places that a model with a memory keeps; by default as its recipe says.")] = None,
               by: Annotated[str | None, typer.Option(metavar="document", help="Also list every document.")] = None,
               json: JsonOption = False) -> None:
    """How well a model predicts text: per token, and per word, byte and character of the raw text, which compares
    models with different vocabularies.

    Each document is read on its own. A word is what stands between white space; a Chinese character is one too.

    Example: stemma perplexity run held-out.txt --stride 64
    """
    from stemma.errors import UserError
    from stemma.evaluation.perplexity import perplexity as measure
    from stemma.text.readers import read_passages

    if by not in (None, "document"):
        raise UserError(f'--by is "{by}"; the only choice is document.')
    passages = read_passages(path, **text.options())
    loaded = _load(model)
    with progress_stage("scoring", unit="tokens") as work:
        result = measure(loaded, passages, length, stride, memory, by is not None, work.advance)

    def human() -> None:
        for one in result.get("by_document", []):
            print(f"{one['perplexity']:12,.2f}  {one['tokens']:8,} tokens  {one['begins']!r}")
        rows = [(name, f"{result[key]:,.4g}", f"{result[unit]:,} {unit}") for name, key, unit in
                (("perplexity per token", "perplexity", "tokens"), ("perplexity per word", "word_perplexity", "words"),
                 ("bits per byte", "bits_per_byte", "bytes"),
                 ("bits per character", "bits_per_character", "characters"))]
        print("\n".join(align_columns(rows)))
        kept = "memory" if "memory" in result else "stride"
        print(f"{pluralize(result['documents'], 'document')}, {pluralize(result['length'], 'token')} at a time, "
              f"{kept} {result[kept]:,}; {result['unknown_rate']:.2%} unknown; "
              f"{result['tokens_per_second']:,.0f} tokens/s")

    emit({"model": model, **result}, json, human)


@computes
def cloze(model: ModelArgument,
          path: Annotated[str, typer.Argument(metavar="FILE", help="Passages or questions.")],
          kind: Annotated[str, typer.Option("--format", help="auto, lambada (guess the last word: a passage a line, or "
                                                             'jsonl {"text": ...}), or cbt (choose the left-out '
                                                             "word).")] = "auto",
          length: LengthOption = None, limit: LimitOption = None, json: JsonOption = False) -> None:
    """Does a model know the missing word? LAMBADA's last words, or the Children's Book Test.

    The last word must be the likeliest at its place, token by token. Of cbt's candidates the one is taken that makes
    the rest of the sentence likeliest too; as jsonl: {"context", "question" (with XXXXX), "answer", "candidates"}.

    Example: stemma cloze run lambada_test.jsonl --limit 500
    """
    from stemma.evaluation.cloze import cloze as ask

    loaded = _load(model)
    with progress_stage("asking", unit="questions") as work:
        result = ask(loaded, path, kind, length, limit, work.advance)

    def human() -> None:
        beside = f"perplexity of the word {result['perplexity']:,.1f}" if "perplexity" in result else \
            f"guessing {result['chance']:.1%}"
        print(f"accuracy {_format_accuracy(result, 'accuracy')} of {pluralize(result['questions'], 'question')} · "
              f"{beside} · {result['seconds']:.1f} s")

    emit({"model": model, **result}, json, human)


@computes
def prompt(model: ModelArgument,
           template: Annotated[Path, typer.Argument(metavar="TEMPLATE.toml", help="How a row becomes a prompt.")],
           data: Annotated[str, typer.Option(metavar="FILE", show_default=False,
                                             help="The rows: tsv or csv with a header, or jsonl.")],
           encoded: Encoded,
           shots: Annotated[int, at_least(0, "Solved examples before each row.", metavar="K")] = 0,
           examples: Annotated[str | None, typer.Option(
               metavar="FILE", help="Draw the examples from here; by default from the other rows.")] = None,
           seed: SeedOption = 0, limit: LimitOption = None, length: LengthOption = None,
           predictions: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the answers as jsonl.")] = None,
           overwrite: OverwriteOption = False, json: JsonOption = False) -> None:
    """Classify, choose or answer by prompting, with no training: zero, one or a few examples in the prompt.

    \b
    A template, with columns of the file in braces:
      kind   = "classify"                      # or "choice", or "qa"
      text   = "Review: {sentence}\\nSentiment:"
      label  = "label"                         # the column with the right answer
      labels = { "0" = " negative", "1" = " positive" }
    choice has choices = ["{ending0}", "{ending1}"], or ["{endings}"] for a list; qa has answer = " {answer}". Also:
    instruction, separator, and normalization = "length", "byte" or "unconditional".

    Example: stemma prompt run sentiment.toml --data dev.tsv --shots 4 --examples train.tsv
    """
    from stemma.errors import UserError
    from stemma.evaluation.few_shot import run_few_shot as ask
    from stemma.tasks.prompt_template import load_template, render_examples
    from stemma.text.tables import read_table

    if predictions is not None and (predictions.is_dir() or (predictions.exists() and not overwrite)):
        raise UserError(f"{predictions} {'is a folder' if predictions.is_dir() else 'exists'}; choose another file for "
                        "--predictions" + ("." if predictions.is_dir() else ", or add --overwrite."))
    shape = load_template(template)
    rows, pool = (None if file is None else render_examples(
        shape, read_table(file, shape.columns or None, **encoded.options())) for file in (data, examples))
    assert rows is not None
    loaded = _load(model)
    with progress_stage("asking", unit="rows") as work:
        result, answers = ask(loaded, shape, rows, pool, shots, seed, limit, length, work.advance)
    if predictions is not None:
        _write(predictions, answers)

    def human() -> None:
        print(f"the first prompt:\n{result['example']}\n")
        first = "exact_match" if "exact_match" in result else "accuracy"
        print(f"{first.replace('_', ' ')} {_format_accuracy(result, first)} of {pluralize(result['rows'], 'row')}, "
              f"{result['shots']} examples each")
        for key in ("f1", "macro_f1", "majority", "chance"):
            if key in result:
                print(f"{key.replace('_', ' ')} {format_value(round(result[key], 4))}")
        for label, counts in result.get("labels", {}).items():
            print(f"  {label}: {pluralize(counts['count'], 'row')}, {counts['right']:,} found; said "
                  f"{pluralize(counts['predicted'], 'time')}")

    emit({"model": model, "template": str(template), **result}, json, human)


def _load(model: str) -> Model:
    from stemma.device import choose_device
    from stemma.exchange.load import open_model

    return open_model(model, choose_device())


def _format_accuracy(result: dict[str, Any], key: str) -> str:
    low, high = result["interval"]
    return f"{result[key]:.1%} (95%: {low:.1%} to {high:.1%})"


def _write(path: Path, answers: list[dict[str, Any]]) -> None:
    import json

    from stemma.atomic_files import atomic_write, make_folder

    make_folder(path.parent)
    atomic_write(path, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in answers))
