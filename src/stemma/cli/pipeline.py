"""`stemma pipeline`: training in stages, from general text to a task, by a plan."""

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
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="The stages and their data: a TOML file, or ulmfit, a "
                                        "plan that comes with Stemma.")],
    out: Annotated[Path, typer.Option(metavar="RUN", show_default=False, help="Folder of the pipeline; unchanged "
                                      "stages in it are reused.")],
    changes: Annotated[list[str] | None, typer.Argument(
        metavar="KEY=VALUE", help="Changes to the plan, such as stages.finetune.train=train.tsv.")] = None,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Run the stages of a plan, each from the model of the previous one: pre-training on general text, on domain text
    and on the texts of a task, then fine-tuning on the task.

    A plan has a table for each stage: [stages.general] with `model`, or with `recipe` and `corpus`; [stages.domain]
    with `corpus` and `steps`; [stages.task] with `texts_of` and `epochs`; [stages.finetune] with `task`, `train` and
    `dev`. `stemma resume` continues an interrupted pipeline.

    Example: stemma pipeline plan.toml --out adapted
    Example: stemma pipeline ulmfit stages.general.corpus=wiki.txt stages.finetune.train=train.tsv
    stages.finetune.dev=dev.tsv --out reviews
    """
    from stemma.tasks.pipeline.pipeline import pipeline as run_pipeline

    finish(run_pipeline(plan, out, changes=changes or (), overwrite=overwrite, show=sys.stderr.isatty()), json)


def finish(result: dict[str, Any], as_json: bool) -> None:
    """Write the missing reports of the stages and print the result."""
    from stemma.lab.report.run_html import REPORT, try_report

    for stage in result["stages"]:
        if stage["run"] is not None and not (Path(stage["run"]) / REPORT).is_file():
            try_report(stage["run"])

    def human() -> None:
        from stemma.tasks.pipeline.report import tables

        for title, (header, rows) in tables(result).items():
            print("\n".join([title, *(f"  {line}" for line in align_columns([header, *rows])), ""]))
        print(f"{result['run']}/model is the final model; {result['run']}/report.md describes the stages.")

    emit(result, as_json, human)
