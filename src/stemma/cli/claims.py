"""`stemma claims`: published findings as experiments to list, show and run."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Any

import typer

from stemma.cli.common_options import computes
from stemma.cli.compare_ablate import LabFolder, LabTasks, finish
from stemma.cli.options import TextOptions
from stemma.cli.output import DebugOption, JsonOption, align_columns, at_least, emit
from stemma.errors import UserError, pluralize

ClaimArgument = Annotated[str, typer.Argument(metavar="NAME", help="A claim's name, or the path of a .toml file.")]

claims_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None,
                         help="Published findings as experiments: list, show and run them.")


@claims_app.callback()
def claims(context: typer.Context, json: JsonOption = False, debug: DebugOption = False) -> None:
    """List the claims: published findings as experiments. `show` prints the plan of a claim, `run` runs it.

    Example: stemma claims
    """
    if context.invoked_subcommand is not None:
        return
    from stemma.lab.claims import all_claims

    available = all_claims()

    def human() -> None:
        from rich.text import Text

        from stemma.cli.output import console

        for claim in available:
            cells = pluralize(len(claim.variants) * claim.seeds, "cell")
            cost = f"{pluralize(claim.total_tokens(), 'token')} in {cells}"
            requirement = "" if claim.language == "en" else " · needs --corpus"
            console().print(Text.assemble((claim.name, "bold"), f"  {claim.title}"))
            console().print(Text(f"  {claim.paper}: {claim.found}"))
            console().print(Text(f"  {cost}{requirement}\n", style="dim"))
        print("`stemma claims show NAME` prints the plan of a claim, `stemma claims run NAME --out DIR` runs it.")

    emit({"claims": [_about(claim) for claim in available]}, json, human)


@claims_app.command()
def show(name: ClaimArgument, json: JsonOption = False) -> None:
    """Print the plan of a claim: its variants, the expected result, and the metric that decides.

    Example: stemma claims show masks
    """
    from stemma import recipe_loading
    from stemma.lab.claims import find_claim

    claim = find_claim(name)
    recipes = claim.recipes()
    first, second = claim.compared_pair
    changes = [{"key": change.key, "from": change.before, "to": change.after}
               for change in recipe_loading.diff(recipes[first], recipes[second])]

    def human() -> None:
        rows = [("question", claim.title), ("paper", claim.paper), ("finding", claim.found), ("note", claim.note or ""),
                ("expected", claim.expectation), ("decided by", " · ".join([claim.measure, *claim.tasks])),
                ("budget", f"{pluralize(claim.tokens, 'token')}, {pluralize(claim.seeds, 'seed')}, size {claim.size}"),
                ("shared changes", " ".join(claim.shared_changes()))]
        rows += [(variant.name, " ".join([variant.recipe, *variant.changes])) for variant in claim.variant_entries]
        print("\n".join(align_columns([row for row in rows if row[1]])))

    emit(_about(claim) | {"between": changes}, json, human)


@claims_app.command()
@computes
def run(name: ClaimArgument, lab: LabFolder, tasks: LabTasks, text: TextOptions,
        corpus: Annotated[list[str] | None, typer.Option(
            "--corpus", metavar="DIR|PATH", show_default=False,
            help="Training text; by default the documentation inside your Python.")] = None,
        tokens: Annotated[int | None, at_least(1, "Training tokens per model")] = None,
        seeds: Annotated[int | None, at_least(1, "Number of seeds per variant")] = None,
        size: Annotated[str | None, typer.Option(help="Size of all recipes, such as mini.")] = None,
        json: JsonOption = False) -> None:
    """Run a claim. The verdict is reproduced, contradicted, not reproduced at this size, or inconclusive.

    Without --corpus it needs no data: text and tasks come from the documentation inside your Python. The same command
    or `stemma resume` continues after an interruption.

    Example: stemma claims run masks --out masks
    """
    from stemma.lab.claims import claim_experiment, find_claim
    from stemma.lab.comparison import parse_tasks
    from stemma.lab.report.lab_phrases import CLAIM_VERDICTS
    from stemma.lab.results import check_metric
    from stemma.lab.run_experiment import run_experiment

    if corpus == ["-"]:
        raise UserError("the lab reads its text more than once, which standard input does not allow; give a file.")
    claim = find_claim(name)
    lab_tasks = parse_tasks(tasks.task or [], tasks.train or [], tasks.dev or [], tasks.epochs)
    experiment = claim_experiment(claim, corpus=corpus or (), reading=text.reading(),
                                  tasks=lab_tasks, tokens=tokens, seeds=seeds, size=size,
                                  command=shlex.join(["stemma", *sys.argv[1:]]))
    check_metric(experiment)
    results = run_experiment(experiment, lab.out, **lab.options(), show=sys.stderr.isatty())
    if not (lab.dry_run or json):
        outcome = results["claim"]
        print(f"{claim.title}\n{CLAIM_VERDICTS[outcome['verdict']]}: {outcome['text']}\n")
    finish(results, lab.out, json, lab.dry_run, lab.processes)


def _about(claim: Any) -> dict[str, Any]:
    """The fields of a claim for `--json`."""
    fields: dict[str, Any] = claim.model_dump(exclude={"variants"})
    return fields | {"expects": claim.expectation,
                     "variants": [variant.model_dump() for variant in claim.variant_entries],
                     "cells": len(claim.variants) * claim.seeds, "total_tokens": claim.total_tokens()}
