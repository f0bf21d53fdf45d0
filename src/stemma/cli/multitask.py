"""`stemma multitask`: one model learns several tasks at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from stemma.cli.common import TASKS
from stemma.cli.family import ChangesArgument
from stemma.cli.finetune import ModelOption
from stemma.cli.output import DebugOption, DeviceOption, JsonOption
from stemma.cli.train import EncodingOption, ErrorsOption, OverwriteOption, SeedOption, finish


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=TASKS)(multitask)


def multitask(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The tasks: a table [tasks.NAME] for each, with "
                                         "kind or dataset, train, dev, and perhaps test, columns, metric, weight, head "
                                         "(linear, or san for pairs), dropout; finetune = true to go on with each by "
                                         "itself. Or all of them text to text: kind = seq2seq, prefix, and a "
                                         "temperature.")],
    model: ModelOption,
    out: Annotated[Path, typer.Option(metavar="RUN", show_default=False, help="The run folder to make.")],
    changes: ChangesArgument = None,
    epochs: Annotated[float | None, typer.Option(metavar="N", show_default="the plan's, or 5", help="Go through all "
                                                 "examples so often, in each stage.")] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="Or so many steps.")] = None,
    minutes: Annotated[float | None, typer.Option(metavar="M", help="Or so many minutes.")] = None,
    seed: SeedOption = 0, encoding: EncodingOption = "utf-8", errors: ErrorsOption = "strict",
    overwrite: OverwriteOption = False, device: DeviceOption = None,
    json: JsonOption = False, debug: DebugOption = False,
) -> None:
    """Teach a model several tasks at once: a shared network, a head for each task, and one folder that answers all of
    them (MT-DNN). Interrupted anywhere, `stemma resume` goes on.

    Example: stemma multitask plan.toml --model run --out tuned

    Example: stemma multitask plan.toml --model run --out tuned --epochs 5 training.batch_size=16
    """
    from stemma.tasks.multitask import multitask as run_it
    from stemma.training.run import Reading

    result = run_it(plan, model, out, epochs=epochs, steps=steps, minutes=minutes, seed=seed, changes=changes or (),
                    reading=Reading(encoding=encoding, errors=errors), overwrite=overwrite,
                    show=sys.stderr.isatty())
    finish(result, out, json)
