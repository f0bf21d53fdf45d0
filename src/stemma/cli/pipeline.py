"""`stemma pipeline`: from general text to a task in stages, by a plan."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stemma.cli.common_options import TASKS, computes
from stemma.cli.options import OverwriteOption
from stemma.cli.output import JsonOption, align_columns, emit


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=TASKS)(pipeline)


@computes
def pipeline(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The stages, and what each learns from.")],
    out: Annotated[Path, typer.Option(metavar="RUN", show_default=False, help="The folder for all of it; in that of an "
                                      "earlier pipeline, only what changed is made again.")],
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Carry out a plan of stages, each on top of the one before: general text, a domain's, a task's, the task itself.

    A plan has a table for each stage: [stages.general] with `model`, or with `recipe` and `corpus`; [stages.domain]
    with `corpus` and `steps`; [stages.task] with `texts_of` and `epochs`; [stages.finetune] with `task`, `train` and
    `dev`. Interrupted anywhere, `stemma resume` goes on.

    Example: stemma pipeline plan.toml --out adapted
    """
    from stemma.tasks.pipeline.pipeline import pipeline as run_it

    finish(run_it(plan, out, overwrite=overwrite, show=sys.stderr.isatty()), json)


def finish(result: dict[str, Any], as_json: bool) -> None:
    """What is printed at the end; each run below gets its report."""
    from stemma.lab.report.run_html import REPORT, try_report

    for stage in result["stages"]:
        if stage["run"] is not None and not (Path(stage["run"]) / REPORT).is_file():
            try_report(stage["run"])

    def human() -> None:
        from stemma.tasks.pipeline.report import tables

        for title, (head, rows) in tables(result).items():
            print("\n".join([title, *(f"  {line}" for line in align_columns([head, *rows])), ""]))
        print(f"{result['run']}/model is ready, and {result['run']}/report.md tells how it came about.")

    emit(result, as_json, human)
