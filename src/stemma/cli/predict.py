"""`predict` and `evaluate`: ask a fine-tuned model, and say how good its answers are."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stemma.cli.common import TASKS, computes
from stemma.cli.finetune import renamed
from stemma.cli.options import Encoded, OverwriteOption
from stemma.cli.output import JsonOption, columns, emit
from stemma.cli.use import ModelArgument
from stemma.errors import counted
from stemma.progress import stage

if TYPE_CHECKING:
    from stemma.exchange.cards import Card
    from stemma.exchange.model import Model

TaskOption = Annotated[str | None, typer.Option(metavar="NAME", help="Which task, if the model answers several.")]
ColumnsOption = Annotated[str | None, typer.Option("--columns", metavar="OURS=FILE'S,...",
                                                   help="Columns that are named otherwise: text=review; or their "
                                                        "numbers, if there is no header: text=1.")]
LISTED = 5  # of the worst errors, for people


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

    from stemma.errors import UserError
    from stemma.files import file_atomically, make_folder, refuse_non_empty
    from stemma.tasks.data.inputs import read_inputs
    from stemma.tasks.predicting import answer

    if out is not None:
        if out.is_dir():
            raise UserError(f"{out} is a folder; --out is the file to write.")
        refuse_non_empty(out, overwrite)
    loaded, card = asked(model, task)
    asks = read_inputs(card.kind, path, form=form, columns=renamed(renaming), **encoded.options())
    said = answer(loaded, card, asks)
    told = {"model": model, "task": card.name, "kind": card.kind}
    if out is not None:
        count = 0
        make_folder(out.parent)
        with stage("answering", unit="rows") as work, file_atomically(out) as file:
            for one in said:
                file.write((spelling.dumps(one, ensure_ascii=False) + "\n").encode())
                count += 1
                work.advance()
        emit({**told, "rows": count, "out": str(out)}, json, lambda: print(f"{counted(count, 'answer')} in {out}"))
    elif json:
        kept = []
        with stage("answering", unit="rows") as work:
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

    from stemma.files import folder_atomically, refuse_non_empty
    from stemma.lab.report.evaluation import write_evaluation
    from stemma.tasks.evaluating import Data
    from stemma.tasks.evaluating import evaluate as judge

    place = out or _place(Path(model), data, task)
    refuse_non_empty(place, overwrite or out is None)
    loaded, card = asked(model, task)
    found, rows = judge(loaded, card, Data(data, form, renamed(renaming), **encoded.options()), metric or ())
    result = {"model": model, **found, "report": str(place / "report.html")}
    typed = ["stemma", "evaluate", model, "--data", data]
    for name, value in (("task", task), ("columns", renaming), ("format", form), ("out", out)):
        typed += [f"--{name}", str(value)] if value is not None else []
    with folder_atomically(place, overwrite or out is None, checksums=False) as folder:
        lines = "".join(spelling.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / "predictions.jsonl").write_text(lines, encoding="utf-8")
        (folder / "result.json").write_text(spelling.dumps(result, indent=1, ensure_ascii=False), encoding="utf-8")
        write_evaluation(result, folder, shlex.join([*typed, *(word for name in metric or () for word in
                                                              ("--metric", name))]))
    emit(result, json, lambda: _show(result))


def asked(model: str, task: str | None) -> tuple[Model, Card]:
    """The model and the task to be answered."""
    from stemma.device import choose_device
    from stemma.errors import UserError
    from stemma.exchange.load import find_folder, open_model

    folder = find_folder(model)
    if (folder / "directions.json").is_file() and not (folder / "tasks.json").is_file():
        raise UserError(f"{model} writes texts: `stemma translate {model} FILE` has them, and with --reference they "
                        "are scored.")
    loaded = open_model(folder, choose_device())
    return loaded, loaded.card(task)


def _place(model: Path, data: str, task: str | None) -> Path:
    """Within what was judged where that is a run of ours; otherwise here."""
    name = "-".join(filter(None, (task, Path(data).name.split(".")[0] or "stdin")))
    return model / "evaluation" / name if (model / "run.json").is_file() else Path(f"evaluation-{name}")


def _show(result: dict[str, Any]) -> None:
    from stemma.lab.report.evaluation import described, written
    from stemma.tasks.kinds import head_task

    kind = result["kind"]
    print("\n".join(columns([["metric", "score", "95%"], *(
        [name, written(kind, name, result["metrics"]["test"][name]),
         f"{written(kind, name, low)} to {written(kind, name, high)}"]
        for name, (low, high) in result["intervals"].items())])))
    print(f"{counted(result['examples'], 'example')}, {result['examples_per_second']:,.0f} a second")
    for table in head_task(kind).report(result):
        if table.fits_terminal:
            rows = [[f"{cell:.{table.digits}f}" if isinstance(cell, float) else str(cell) for cell in row]
                    for row in table.rows]
            names = table.columns if table.short is None else table.short
            print("\n" + "\n".join(columns([*([list(names)] if names else []), *rows])))
    if result["worst"]:
        print(f"\nthe worst of its errors ({len(result['worst'])} are in the report):")
        for one in result["worst"][:LISTED]:
            print(f"  {one['sure']:.3f}  said {one['said']!r} for {one['right']!r}: {described(one)[:100]}")
    print(f"\n{result['report']}")
