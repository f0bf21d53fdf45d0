"""`stemma claims`: what papers found, as experiments that can be run here, and what comes out."""

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
                         help="What papers found, as experiments: list them, look at one, run it.")


@claims_app.callback()
def claims(context: typer.Context, json: JsonOption = False, debug: DebugOption = False) -> None:
    """What papers found, as experiments that can be run here: all of them; `show` one, `run` one.

    Example: stemma claims
    """
    if context.invoked_subcommand is not None:
        return
    from stemma.lab.claims import all_claims

    found = all_claims()

    def human() -> None:
        from rich.text import Text

        from stemma.cli.output import console

        for claim in found:
            cells = pluralize(len(claim.variants) * claim.seeds, "cell")
            cost = f"{pluralize(claim.total_tokens(), 'token')} in {cells}"
            own = "" if claim.language == "en" else " · needs --corpus"
            console().print(Text.assemble((claim.name, "bold"), f"  {claim.title}"))
            console().print(Text(f"  {claim.paper}: {claim.found}"))
            console().print(Text(f"  {cost}{own}\n", style="dim"))
        print("`stemma claims show NAME` tells the plan of one, `stemma claims run NAME --out DIR` runs it.")

    emit({"claims": [_about(claim) for claim in found]}, json, human)


@claims_app.command()
def show(name: ClaimArgument, json: JsonOption = False) -> None:
    """The plan of a claim: its variants, what is expected of them, and by what it is decided.

    Example: stemma claims show masks
    """
    from stemma import recipe_loading
    from stemma.lab.claims import find_claim

    claim = find_claim(name)
    recipes = claim.recipes()
    first, second = claim.compared_pair
    between = [{"key": change.key, "from": change.before, "to": change.after}
               for change in recipe_loading.diff(recipes[first], recipes[second])]

    def human() -> None:
        told = [("question", claim.title), ("paper", claim.paper), ("found", claim.found), ("note", claim.note or ""),
                ("expected", claim.expectation), ("decided by", " · ".join([claim.measure, *claim.tasks])),
                ("budget", f"{pluralize(claim.tokens, 'token')}, {pluralize(claim.seeds, 'seed')}, size {claim.size}"),
                ("for all", " ".join(claim.shared_changes()))]
        told += [(one.name, " ".join([one.recipe, *one.changes])) for one in claim.variant_entries]
        print("\n".join(align_columns([row for row in told if row[1]])))

    emit(_about(claim) | {"between": between}, json, human)


@claims_app.command()
@computes
def run(name: ClaimArgument, lab: LabFolder, tasks: LabTasks, text: TextOptions,
        corpus: Annotated[list[str] | None, typer.Option(
            "--corpus", metavar="DIR|PATH", show_default=False,
            help="Text to learn from; by default the documentation inside your Python.")] = None,
        tokens: Annotated[int | None, at_least(1, "Every model reads so many tokens.")] = None,
        seeds: Annotated[int | None, at_least(1, "How often everything is done.")] = None,
        size: Annotated[str | None, typer.Option(help="Of all recipes, such as mini.")] = None,
        json: JsonOption = False) -> None:
    """Run a claim through the lab: seen, the opposite, not seen at this size, or inconclusive.

    Without --corpus it needs no data: text and tasks are the documentation inside your own Python. Interrupted, the
    same command or `stemma resume` goes on.

    Example: stemma claims run masks --out masks
    """
    from stemma.lab.claims import claim_experiment, find_claim
    from stemma.lab.comparison import parse_tasks
    from stemma.lab.results import check_metric
    from stemma.lab.run_experiment import run_experiment

    if corpus == ["-"]:
        raise UserError("the lab reads its text more than once, which standard input does not allow; give a file.")
    claim = find_claim(name)
    given = parse_tasks(tasks.task or [], tasks.train or [], tasks.dev or [], tasks.epochs)
    experiment = claim_experiment(claim, corpus=corpus or (), reading=text.reading(),
                               tasks=given, tokens=tokens, seeds=seeds, size=size,
                               command=shlex.join(["stemma", *sys.argv[1:]]))
    check_metric(experiment)
    found = run_experiment(experiment, lab.out, **lab.options(), show=sys.stderr.isatty())
    if not (lab.dry_run or json):
        print(f"{claim.title}\n{found['claim']['verdict']}: {found['claim']['text']}\n")
    finish(found, lab.out, json, lab.dry_run, lab.processes)


def _about(claim: Any) -> dict[str, Any]:
    """A claim as a program reads it."""
    plain: dict[str, Any] = claim.model_dump(exclude={"variants"})
    return plain | {"expects": claim.expectation, "variants": [one.model_dump() for one in claim.variant_entries],
                    "cells": len(claim.variants) * claim.seeds, "total_tokens": claim.total_tokens()}
