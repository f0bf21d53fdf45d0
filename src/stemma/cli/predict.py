"""`predict` and `evaluate`: ask a fine-tuned model, and say how good its answers are."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stemma.cli.common_options import TASKS, computes
from stemma.cli.fill_embed import ModelArgument
from stemma.cli.finetune import parse_columns
from stemma.cli.options import Encoded, OverwriteOption
from stemma.cli.output import JsonOption, align_columns, emit
from stemma.errors import pluralize
from stemma.progress import progress_stage

if TYPE_CHECKING:
    from stemma.model import Model
    from stemma.task_config import TaskConfig

TaskOption = Annotated[str | None, typer.Option(metavar="NAME", help="Which task, if the model answers several.")]
ColumnsOption = Annotated[str | None, typer.Option("--columns", metavar="OURS=FILE'S,...",
                                                   help="Columns that are named otherwise: text=review; or their "
                                                        "numbers, if there is no header: text=1.")]
MAX_LISTED = 5  # of the worst errors, for people


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=TASKS)(predict)
    app.command(rich_help_panel=TASKS)(evaluate)


@computes
def predict(
    model: ModelArgument,
    path: Annotated[str, typer.Argument(metavar="PATH", help="What to answer: .jsonl, .tsv, .csv, a text a line, or - "
                                                             "for standard input.")],
    encoded: Encoded,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the answers here, as JSON lines.")] = None,
    task: TaskOption = None, renaming: ColumnsOption = None,
    form: Annotated[str | None, typer.Option("--format", metavar="NAME", help="Read the file as training does, for a "
                                             "data set (mrpc, conll2003) or a kind of task (tag).")] = None,
    overwrite: OverwriteOption = False, json: JsonOption = False,
) -> None:
    """What a fine-tuned model says of each row: a JSON object a line, as soon as it is known, in little memory.

    Labels come with the scores of all; answers, and entities of tagged words, with the characters where they stand.
    Two texts on a plain line have a tab between them; labels that the file has are passed over.

    Example: stemma predict tuned reviews.txt --out answers.jsonl

    Example: echo '{"question": "who reads?", "context": "The clerk reads."}' | stemma predict tuned -
    """
    import json as spelling

    from stemma.atomic_files import atomic_file, check_output_path, make_folder
    from stemma.errors import UserError
    from stemma.tasks.predict import predict_chunks
    from stemma.tasks.predict_inputs import read_inputs

    if out is not None:
        if out.is_dir():
            raise UserError(f"{out} is a folder; --out is the file to write.")
        check_output_path(out, overwrite)
    loaded, card = load_model_and_task(model, task)
    asks = read_inputs(card.kind, path, file_format=form, columns=parse_columns(renaming), **encoded.options())
    said = predict_chunks(loaded, card, asks)
    told = {"model": model, "task": card.name, "kind": card.kind}
    if out is not None:
        count = 0
        make_folder(out.parent)
        with progress_stage("answering", unit="rows") as work, atomic_file(out) as file:
            for one in said:
                file.write((spelling.dumps(one, ensure_ascii=False) + "\n").encode())
                count += 1
                work.advance()
        emit({**told, "rows": count, "out": str(out)}, json, lambda: print(f"{pluralize(count, 'answer')} in {out}"))
    elif json:
        kept = []
        with progress_stage("answering", unit="rows") as work:
            for one in said:
                kept.append(one)
                work.advance()
        emit({**told, "rows": len(kept), "predictions": kept}, json)
    else:
        readable = "utf" in (sys.stdout.encoding or "").lower()
        for one in said:
            print(spelling.dumps(one, ensure_ascii=not readable), flush=True)


@computes
def evaluate(
    model: ModelArgument,
    data: Annotated[str, typer.Option(metavar="FILE", show_default=False, help="Examples that say what is right.")],
    encoded: Encoded,
    task: TaskOption = None, renaming: ColumnsOption = None,
    form: Annotated[str | None, typer.Option("--format", metavar="NAME", show_default="as in training",
                                             help="How to read the file: as a data set (mrpc, squad2) or a kind of "
                                                  "task (classify).")] = None,
    metric: Annotated[list[str] | None, typer.Option(help="What to measure, if not what it was trained by.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", show_default="evaluation/FILE in the run",
                                             help="Where report.html, result.json and predictions.jsonl go.")] = None,
    overwrite: OverwriteOption = False, json: JsonOption = False,
) -> None:
    """How good a fine-tuned model is on a file: metrics with 95% intervals, what it takes for what, its worst errors;
    all of it also in report.html. The default place is written anew each time.

    Example: stemma evaluate tuned --data test.tsv

    Example: stemma evaluate tuned --data MRPC/dev.tsv --format mrpc --out judged
    """
    import json as spelling

    from stemma.atomic_files import atomic_folder, check_output_path
    from stemma.evaluation.evaluate import EvalFile
    from stemma.evaluation.evaluate import evaluate as judge
    from stemma.lab.report.evaluation_html import write_evaluation

    place = out or _default_out(Path(model), data, task)
    check_output_path(place, overwrite or out is None)
    loaded, card = load_model_and_task(model, task)
    found, rows = judge(loaded, card, EvalFile(data, form, parse_columns(renaming), **encoded.options()), metric or ())
    result = {"model": model, **found, "report": str(place / "report.html")}
    typed = ["stemma", "evaluate", model, "--data", data]
    for name, value in (("task", task), ("columns", renaming), ("format", form), ("out", out)):
        typed += [f"--{name}", str(value)] if value is not None else []
    with atomic_folder(place, overwrite or out is None, checksums=False) as folder:
        lines = "".join(spelling.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / "predictions.jsonl").write_text(lines, encoding="utf-8")
        (folder / "result.json").write_text(spelling.dumps(result, indent=1, ensure_ascii=False), encoding="utf-8")
        write_evaluation(result, folder, shlex.join([*typed, *(word for name in metric or () for word in
                                                              ("--metric", name))]))
    emit(result, json, lambda: _show(result))


def load_model_and_task(model: str, task: str | None) -> tuple[Model, TaskConfig]:
    """The model and the task to be answered."""
    from stemma.device import choose_device
    from stemma.errors import UserError
    from stemma.exchange.load import open_model, resolve_model_folder

    folder = resolve_model_folder(model)
    if (folder / "directions.json").is_file() and not (folder / "tasks.json").is_file():
        raise UserError(f"{model} writes texts: `stemma translate {model} FILE` has them, and with --reference they "
                        "are scored.")
    loaded = open_model(folder, choose_device())
    return loaded, loaded.task_config(task)


def _default_out(model: Path, data: str, task: str | None) -> Path:
    """Within what was judged where that is a run of ours; otherwise here."""
    name = "-".join(filter(None, (task, Path(data).name.split(".")[0] or "stdin")))
    return model / "evaluation" / name if (model / "run.json").is_file() else Path(f"evaluation-{name}")


def _show(result: dict[str, Any]) -> None:
    from stemma.lab.report.evaluation_html import format_example, format_metric
    from stemma.tasks.kinds import head_task

    kind = result["kind"]
    print("\n".join(align_columns([["metric", "score", "95%"], *(
        [name, format_metric(kind, name, result["metrics"]["test"][name]),
         f"{format_metric(kind, name, low)} to {format_metric(kind, name, high)}"]
        for name, (low, high) in result["intervals"].items())])))
    print(f"{pluralize(result['examples'], 'example')}, {result['examples_per_second']:,.0f} a second")
    for table in head_task(kind).report_tables(result):
        if table.fits_terminal:
            rows = [[f"{cell:.{table.digits}f}" if isinstance(cell, float) else str(cell) for cell in row]
                    for row in table.rows]
            names = table.columns if table.terminal_columns is None else table.terminal_columns
            print("\n" + "\n".join(align_columns([*([list(names)] if names else []), *rows])))
    if result["worst"]:
        print(f"\nthe worst of its errors ({len(result['worst'])} are in the report):")
        for one in result["worst"][:MAX_LISTED]:
            print(f"  {one['sure']:.3f}  said {one['said']!r} for {one['right']!r}: {format_example(one)[:100]}")
    print(f"\n{result['report']}")
