"""`perplexity`, `cloze` and `prompt`: zero-shot and few-shot evaluation of a language model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stemma.cli.common_options import TASKS, USE, computes
from stemma.cli.fill_embed import ModelArgument
from stemma.cli.options import FileEncoding, SeedOption, TextOptions
from stemma.cli.output import JsonOption, align_columns, at_least, emit, format_value
from stemma.errors import pluralize
from stemma.progress import progress_stage

if TYPE_CHECKING:
    from stemma.model import Model

LengthOption = Annotated[int | None, typer.Option(metavar="N", help="Context length; by default as in training.")]
LimitOption = Annotated[int | None, at_least(1, "Use only the first N", metavar="N")]


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=USE)(perplexity)
    app.command(rich_help_panel=TASKS)(cloze)
    app.command(rich_help_panel=TASKS)(prompt)


@computes
def perplexity(model: ModelArgument,
               path: Annotated[list[str], typer.Argument(metavar="PATH", help="Text: files, folders, globs, or -.")],
               text: TextOptions,
               stride: Annotated[int | None, typer.Option(
                   metavar="N", help="Stride of the window; smaller gives more context and takes longer. By default "
                                     "half the length.")] = None,
               length: LengthOption = None,
               memory: Annotated[int | None, typer.Option(
                   metavar="N", help="Memory length (Transformer-XL, XLNet); by default the recipe's.")] = None,
               samples: Annotated[int | None, at_least(1, "Diffusion models (mdlm): masks per window; more give a more "
                                                          "exact bound. By default 8", metavar="N")] = None,
               by: Annotated[str | None, typer.Option(metavar="document",
                                                      help="Also print the perplexity of each document.")] = None,
               json: JsonOption = False) -> None:
    """Compute the perplexity of a text per token and per word, and bits per byte and character of the raw text, which
    compare models with different vocabularies.

    No context crosses a document boundary. Words are separated by white space; a Chinese character is a word. For a
    diffusion model (mdlm) the values are upper bounds, estimated with --samples masks.

    Example: stemma perplexity run held-out.txt --stride 64
    """
    from stemma.errors import UserError
    from stemma.evaluation.perplexity import perplexity as compute_perplexity
    from stemma.text.readers import read_passages

    if by not in (None, "document"):
        raise UserError(f'--by is "{by}"; the only choice is document.')
    passages = read_passages(path, **text.options())
    loaded = _load(model)
    with progress_stage("scoring", unit="tokens") as work:
        result = compute_perplexity(loaded, passages, length, stride, memory, by is not None, samples, work.advance)

    def human() -> None:
        for document in result.get("by_document", []):
            print(f"{document['perplexity']:12,.2f}  {document['tokens']:8,} tokens  {document['begins']!r}")
        rows = [(name, f"{result[key]:,.4g}", f"{result[unit]:,} {unit}") for name, key, unit in
                (("perplexity per token", "perplexity", "tokens"), ("perplexity per word", "word_perplexity", "words"),
                 ("bits per byte", "bits_per_byte", "bytes"),
                 ("bits per character", "bits_per_character", "characters"))]
        print("\n".join(align_columns(rows)))
        if result.get("bound"):
            error = "" if result["standard_error"] is None else f", standard error {result['standard_error']:.4f}"
            print(f"upper bounds of a diffusion model: {result['nats_per_token']:.4f} nats per token{error}, estimated "
                  f"with {pluralize(result['samples'], 'mask')} per window")
        context = "".join(f", {name} {result[name]:,}" for name in ("memory", "stride") if name in result)
        print(f"{pluralize(result['documents'], 'document')}, {pluralize(result['length'], 'token')} per window"
              f"{context}; {result['unknown_rate']:.2%} unknown; "
              f"{result['tokens_per_second']:,.0f} tokens/s")

    emit({"model": model, **result}, json, human)


@computes
def cloze(model: ModelArgument,
          path: Annotated[str, typer.Argument(metavar="FILE", help="Passages or questions.")],
          kind: Annotated[str, typer.Option("--format", help="auto, lambada (predict the last word: one passage per "
                                                             'line, or jsonl {"text": ...}), or cbt (choose the '
                                                             "missing word).")] = "auto",
          length: LengthOption = None, limit: LimitOption = None, json: JsonOption = False) -> None:
    """Evaluate cloze accuracy: the last words of LAMBADA, or the Children's Book Test (cbt).

    A last word counts if each of its tokens has the highest probability. For cbt, the prediction is the candidate that
    gives the completed sentence the highest probability; as jsonl: {"context", "question" (with XXXXX), "answer",
    "candidates"}.

    Example: stemma cloze run lambada_test.jsonl --limit 500
    """
    from stemma.evaluation.cloze import cloze as run_cloze

    loaded = _load(model)
    with progress_stage("evaluating", unit="questions") as work:
        result = run_cloze(loaded, path, kind, length, limit, work.advance)

    def human() -> None:
        baseline = f"perplexity of the word {result['perplexity']:,.1f}" if "perplexity" in result else \
            f"chance level {result['chance']:.1%}"
        print(f"accuracy {_format_accuracy(result, 'accuracy')} of {pluralize(result['questions'], 'question')} · "
              f"{baseline} · {result['seconds']:.1f} s")

    emit({"model": model, **result}, json, human)


@computes
def prompt(model: ModelArgument,
           template: Annotated[Path, typer.Argument(metavar="TEMPLATE.toml", help="The prompt template.")],
           data: Annotated[str, typer.Option(metavar="FILE", show_default=False,
                                             help="The rows: tsv or csv with a header, or jsonl.")],
           encoded: FileEncoding,
           shots: Annotated[int, at_least(0, "Labelled examples in each prompt", metavar="K")] = 0,
           examples: Annotated[str | None, typer.Option(
               metavar="FILE", help="Sample these examples from this file; by default from the other rows.")] = None,
           seed: SeedOption = 0, limit: LimitOption = None, length: LengthOption = None,
           predictions: Annotated[Path | None, typer.Option(metavar="FILE",
                                                            help="Write the predictions as jsonl.")] = None,
           overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --predictions.")] = False,
           json: JsonOption = False) -> None:
    """Evaluate classification, multiple choice or question answering by prompting: zero-, one- or few-shot.

    \b
    A template, with columns of the file in braces:
      kind   = "classify"                      # or "choice", or "qa"
      text   = "Review: {sentence}\\nSentiment:"
      label  = "label"                         # the column of the gold label
      labels = { "0" = " negative", "1" = " positive" }
    choice has choices = ["{ending0}", "{ending1}"], or ["{endings}"] for a list; qa has answer = " {answer}". Also:
    instruction, separator, and normalization = "length", "byte" or "unconditional".

    Example: stemma prompt run sentiment.toml --data dev.tsv --shots 4 --examples train.tsv
    """
    from stemma.errors import UserError
    from stemma.evaluation.few_shot import run_few_shot
    from stemma.tasks.prompt_template import load_template, render_examples
    from stemma.text.tables import read_table

    if predictions is not None and (predictions.is_dir() or (predictions.exists() and not overwrite)):
        raise UserError(f"{predictions} {'is a folder' if predictions.is_dir() else 'exists'}; choose another file for "
                        "--predictions" + ("." if predictions.is_dir() else ", or add --overwrite."))
    prompt_template = load_template(template)
    columns = prompt_template.columns or None
    rows, pool = (None if file is None else render_examples(
        prompt_template, read_table(file, columns, **encoded.options())) for file in (data, examples))
    assert rows is not None
    loaded = _load(model)
    with progress_stage("evaluating", unit="rows") as work:
        result, answers = run_few_shot(loaded, prompt_template, rows, pool, shots, seed, limit, length, work.advance)
    if predictions is not None:
        _write(predictions, answers)

    def human() -> None:
        print(f"the first prompt:\n{result['example']}\n")
        first = "exact_match" if "exact_match" in result else "accuracy"
        print(f"{first.replace('_', ' ')} {_format_accuracy(result, first)} of {pluralize(result['rows'], 'row')}, "
              f"{result['shots']}-shot")
        for key in ("f1", "macro_f1", "majority", "chance"):
            if key in result:
                print(f"{key.replace('_', ' ')} {format_value(round(result[key], 4))}")
        for label, counts in result.get("labels", {}).items():
            print(f"  {label}: {pluralize(counts['count'], 'row')}, {counts['right']:,} correct; predicted "
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
    atomic_write(path, "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers))
