"""`stemma multitask`: fine-tune one model on several tasks at once."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from stemma.cli.common_options import TASKS, computes
from stemma.cli.finetune import ModelOption
from stemma.cli.options import FileEncoding, NewRun, NoBaselineOption, TaskBudget
from stemma.cli.output import JsonOption
from stemma.cli.pretrain import finish
from stemma.cli.recipes import ChangesArgument


@dataclass(frozen=True)
class PlanBudget(TaskBudget):
    epochs: Annotated[float | None, typer.Option(metavar="N", show_default="the plan's, or 5", help="Epochs of "
                                                 "each stage.")] = None


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=TASKS)(multitask)


@computes
def multitask(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The tasks: a table [tasks.NAME] for each, with "
                                         "kind or dataset, train, dev, and optionally test, columns, metric, weight, "
                                         "head (linear, or san for pairs), dropout; finetune = true fine-tunes on each "
                                         "task afterwards. Or all of them text to text: kind = seq2seq, prefix, and a "
                                         "temperature.")],
    model: ModelOption, run: NewRun, budget: PlanBudget, encoded: FileEncoding, changes: ChangesArgument = None,
    no_baseline: NoBaselineOption = False, json: JsonOption = False,
) -> None:
    """Fine-tune a model on several tasks at once: a shared network with a head per task, in one run folder (MT-DNN).
    `stemma resume` continues an interrupted run.

    Example: stemma multitask plan.toml --model run --out tuned

    Example: stemma multitask plan.toml --model run --out tuned --epochs 5 training.batch_size=16
    """
    from stemma.tasks.runs.multitask import multitask as run_multitask

    result = run_multitask(plan, model, run.out, **budget.options(), **run.options(), changes=changes or (),
                           reading=encoded.reading(), baseline=not no_baseline, show=sys.stderr.isatty())
    finish(result, run.out, json)
