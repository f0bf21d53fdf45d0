"""`predict` and `evaluate`: predictions of a fine-tuned model, and their metrics."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stemma.cli.common_options import TASKS, computes
from stemma.cli.fill_embed import ModelArgument
from stemma.cli.finetune import parse_columns
from stemma.cli.options import FileEncoding, NoBaselineOption, OverwriteOption
from stemma.cli.output import JsonOption, align_columns, emit
from stemma.errors import pluralize
from stemma.progress import progress_stage

if TYPE_CHECKING:
    from stemma.model import Model
    from stemma.task_config import TaskConfig

TaskOption = Annotated[str | None, typer.Option(metavar="NAME", help="The task, if the model has several.")]
ColumnsOption = Annotated[str | None, typer.Option("--columns", metavar="FIELD=COLUMN,...",
                                                   help="Columns with other names: text=review; or column numbers, "
                                                        "if there is no header: text=1.")]
MAX_LISTED = 5  # errors that are printed


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=TASKS)(predict)
    app.command(rich_help_panel=TASKS)(evaluate)


@computes
def predict(
    model: ModelArgument,
    path: Annotated[str, typer.Argument(metavar="PATH", help="Inputs: .jsonl, .tsv, .csv, one text per line, or - for "
                                                             "standard input.")],
    encoded: FileEncoding,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the predictions here, as JSON lines.")] = None,
    task: TaskOption = None, renaming: ColumnsOption = None,
    form: Annotated[str | None, typer.Option("--format", metavar="NAME", help="File format, as in training: that of a "
                                             "data set (mrpc, conll2003) or of a kind of task (tag).")] = None,
    overwrite: OverwriteOption = False, json: JsonOption = False,
) -> None:
    """Predict each row with a fine-tuned model: one JSON object per line. Rows are streamed, so memory is bounded.

    A label has the scores of all labels; an answer or an entity has its character offsets. In plain text, a tab
    separates two texts of a row. Labels in the file are ignored.

    Example: stemma predict tuned reviews.txt --out answers.jsonl

    Example: echo '{"question": "who reads?", "context": "The clerk reads."}' | stemma predict tuned -
    """
    import json as json_module

    from stemma.atomic_files import atomic_file, check_output_path, make_folder
    from stemma.errors import UserError
    from stemma.tasks.predict import predict_chunks
    from stemma.tasks.predict_inputs import read_inputs

    if out is not None:
        if out.is_dir():
            raise UserError(f"{out} is a folder; --out is the file to write.")
        check_output_path(out, overwrite)
    loaded, config = load_model_and_task(model, task)
    inputs = read_inputs(config.kind, path, file_format=form, columns=parse_columns(renaming), **encoded.options())
    predictions = predict_chunks(loaded, config, inputs)
    header = {"model": model, "task": config.name, "kind": config.kind}
    if out is not None:
        count = 0
        make_folder(out.parent)
        with progress_stage("answering", unit="rows") as work, atomic_file(out) as file:
            for prediction in predictions:
                file.write((json_module.dumps(prediction, ensure_ascii=False) + "\n").encode())
                count += 1
                work.advance()
        result = {**header, "rows": count, "out": str(out)}
        emit(result, json, lambda: print(f"{pluralize(count, 'prediction')} in {out}"))
    elif json:
        rows = []
        with progress_stage("answering", unit="rows") as work:
            for prediction in predictions:
                rows.append(prediction)
                work.advance()
        emit({**header, "rows": len(rows), "predictions": rows}, json)
    else:
        unicode_output = "utf" in (sys.stdout.encoding or "").lower()
        for prediction in predictions:
            print(json_module.dumps(prediction, ensure_ascii=not unicode_output), flush=True)


@computes
def evaluate(
    model: ModelArgument,
    data: Annotated[str, typer.Option(metavar="FILE", show_default=False, help="Labelled examples.")],
    encoded: FileEncoding,
    task: TaskOption = None, renaming: ColumnsOption = None,
    form: Annotated[str | None, typer.Option("--format", metavar="NAME", show_default="as in training",
                                             help="File format: that of a data set (mrpc, squad2) or of a kind of "
                                                  "task (classify).")] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Metric; may be repeated. Default: as in training.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", show_default="evaluation/FILE in the run",
                                             help="Folder for report.html, result.json and predictions.jsonl.")] = None,
    no_baseline: NoBaselineOption = False, overwrite: OverwriteOption = False, json: JsonOption = False,
) -> None:
    """Evaluate a fine-tuned model on a file: metrics with 95% intervals, the confusion matrix and the most confident
    errors, also in report.html. The default folder is overwritten each time. For a run folder, the linear baseline is
    fitted to its training examples and scored on the same file.

    Example: stemma evaluate tuned --data test.tsv

    Example: stemma evaluate tuned --data MRPC/dev.tsv --format mrpc --out evaluation
    """
    import json as json_module

    from stemma.atomic_files import atomic_folder, check_output_path
    from stemma.evaluation.evaluate import EvalFile
    from stemma.evaluation.evaluate import evaluate as run_evaluation
    from stemma.lab.report.evaluation_html import write_evaluation

    folder = out or _default_out(Path(model), data, task)
    check_output_path(folder, overwrite or out is None)
    loaded, config = load_model_and_task(model, task)
    file = EvalFile(data, form, parse_columns(renaming), **encoded.options())
    scores, rows = run_evaluation(loaded, config, file, metric or (), None if no_baseline else Path(model))
    result = {"model": model, **scores, "report": str(folder / "report.html")}
    command = ["stemma", "evaluate", model, "--data", data]
    for name, value in (("task", task), ("columns", renaming), ("format", form), ("out", out)):
        command += [f"--{name}", str(value)] if value is not None else []
    command += ["--no-baseline"] if no_baseline else []
    command += [word for name in metric or () for word in ("--metric", name)]
    with atomic_folder(folder, overwrite or out is None, checksums=False) as temporary:
        lines = "".join(json_module.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (temporary / "predictions.jsonl").write_text(lines, encoding="utf-8")
        (temporary / "result.json").write_text(json_module.dumps(result, indent=1, ensure_ascii=False),
                                               encoding="utf-8")
        write_evaluation(result, temporary, shlex.join(command))
    emit(result, json, lambda: _show(result))


def load_model_and_task(model: str, task: str | None) -> tuple[Model, TaskConfig]:
    """The model, and the config of one of its tasks."""
    from stemma.device import choose_device
    from stemma.errors import UserError
    from stemma.exchange.load import open_model, resolve_model_folder

    folder = resolve_model_folder(model)
    if (folder / "directions.json").is_file() and not (folder / "tasks.json").is_file():
        raise UserError(f"{model} generates texts: use `stemma translate {model} FILE`, with --reference to score "
                        "them.")
    loaded = open_model(folder, choose_device())
    return loaded, loaded.task_config(task)


def _default_out(model: Path, data: str, task: str | None) -> Path:
    """A folder in the run if the model is one, else in the current folder."""
    name = "-".join(filter(None, (task, Path(data).name.split(".")[0] or "stdin")))
    return model / "evaluation" / name if (model / "run.json").is_file() else Path(f"evaluation-{name}")


def _show(result: dict[str, Any]) -> None:
    from stemma.lab.report.evaluation_html import format_example, format_metric
    from stemma.tasks.kinds import head_task

    kind = result["kind"]
    linear = result.get("baseline", {}).get("linear")
    print("\n".join(align_columns([["metric", "score", "95%", *(["linear baseline"] if linear else [])], *(
        [name, format_metric(kind, name, result["metrics"]["test"][name]),
         f"{format_metric(kind, name, low)} to {format_metric(kind, name, high)}",
         *([format_metric(kind, name, linear["test"][name])] if linear else [])]
        for name, (low, high) in result["intervals"].items())])))
    print(f"{pluralize(result['examples'], 'example')}, {result['examples_per_second']:,.0f} a second")
    for table in head_task(kind).report_tables(result):
        if table.fits_terminal:
            rows = [[f"{cell:.{table.digits}f}" if isinstance(cell, float) else str(cell) for cell in row]
                    for row in table.rows]
            header = table.columns if table.terminal_columns is None else table.terminal_columns
            print("\n" + "\n".join(align_columns([*([list(header)] if header else []), *rows])))
    if result["worst"]:
        print(f"\nthe most confident errors ({len(result['worst'])} are in the report):")
        for error in result["worst"][:MAX_LISTED]:
            print(f"  {error['confidence']:.3f}  predicted {error['predicted']!r}, gold {error['gold']!r}: "
                  f"{format_example(error)[:100]}")
    print(f"\n{result['report']}")
