"""`compare` and `ablate`: which change was it? Recipes under the same budget, text and seeds."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from stemma.cli.common_options import LAB, computes
from stemma.cli.completion import recipe_names
from stemma.cli.options import CorpusOption, TextOptions
from stemma.cli.output import JsonOption, align_columns, at_least, emit
from stemma.errors import UserError, pluralize

RecipesArgument = Annotated[list[str], typer.Argument(metavar="RECIPE... [KEY=VALUE...]", show_default=False,
                                                      autocompletion=recipe_names,
                                                      help="Recipes, and changes that all of them get.")]
ChildArgument = Annotated[list[str], typer.Argument(metavar="RECIPE [KEY=VALUE...]", show_default=False,
                                                    autocompletion=recipe_names,
                                                    help="A recipe, and changes for it and its parent alike.")]


@dataclass(frozen=True)
class LabTasks:
    """What every model is fine-tuned on."""

    task: Annotated[list[str] | None, typer.Option("--task", metavar="TASK", help="Then fine-tune on this task; may be "
                                                   "repeated, each with its --train and --dev.")] = None
    train: Annotated[list[str] | None, typer.Option(metavar="FILE", help="The task's training examples.")] = None
    dev: Annotated[list[str] | None, typer.Option(metavar="FILE", help="The examples it is judged by.")] = None
    epochs: Annotated[float, typer.Option(help="Of every fine-tune.")] = 3.0

    def options(self) -> dict[str, Any]:
        return {"task": self.task or [], "train": self.train or [], "dev": self.dev or [], "epochs": self.epochs}


@dataclass(frozen=True)
class LabBudget:
    """How long every model is trained, how often, and what decides."""

    tokens: Annotated[int | None, typer.Option(help="Every model reads so many tokens.")] = None
    flops: Annotated[float | None, typer.Option(help="Every model is trained for so many FLOPs, such as 1e14.")] = None
    minutes: Annotated[float | None, typer.Option(help="Every model is trained for so many minutes, in turns.")] = None
    seeds: Annotated[int, at_least(1, "How often everything is done; one seed shows no spread.")] = 3
    measure: Annotated[str | None, typer.Option(help="The measure that decides, such as sst2.accuracy.")] = None
    margin: Annotated[float | None, typer.Option(help="Of that measure, the largest difference that does not matter: "
                                                 "within it, recipes are called equivalent.")] = None


@dataclass(frozen=True)
class LabFolder:
    """Where the lab is, and how its cells are worked on."""

    out: Annotated[Path, typer.Option(metavar="DIR", show_default=False,
                                      help="The lab's folder; what is there already is used again.")]
    processes: Annotated[int, at_least(1, "So many cells at a time, each with its share of the cores.")] = 1
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and how long it takes, by a short "
                                                            "trial.")] = False
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin anew: what is in --out goes.")] = False

    def options(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "out"}


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=LAB)(compare)
    app.command(rich_help_panel=LAB)(ablate)


@computes
def compare(recipes: RecipesArgument, corpus: CorpusOption, lab: LabFolder, budget: LabBudget, tasks: LabTasks,
            text: TextOptions,
            sizes: Annotated[str | None, typer.Option(help="Every recipe at each of these sizes, such as "
                                                      "tiny,mini,midi; fits how the loss falls.")] = None,
            json: JsonOption = False) -> None:
    """Train recipes on the same text, seeds and budget, and say which differences are more than noise.

    Example: stemma compare bert@tiny roberta@tiny --corpus notes.txt --tokens 1000000 --out lab
    """
    from stemma.lab.comparison import compare as run_it

    names, changes = _split_recipes(recipes)
    wanted = [size.strip() for size in sizes.split(",") if size.strip()] if sizes else []
    found = run_it(names, corpus, lab.out, sizes=wanted, changes=changes, **vars(budget), **tasks.options(),
                   reading=text.reading(), command=_command(), **lab.options(), show=sys.stderr.isatty())
    finish(found, lab.out, json, lab.dry_run, lab.processes)


@computes
def ablate(recipe: ChildArgument, corpus: CorpusOption, lab: LabFolder, budget: LabBudget, tasks: LabTasks,
           text: TextOptions,
           against: Annotated[str | None, typer.Option(metavar="RECIPE", autocompletion=recipe_names, help="What it is "
                                                       "compared with, else its parent.")] = None,
           group: Annotated[list[str] | None, typer.Option(metavar="KEY,KEY", help="Changes that are made "
                                                           "together.")] = None,
           apart: Annotated[list[str] | None, typer.Option(metavar="KEY", help="A change that is made by "
                                                           "itself.")] = None,
           json: JsonOption = False) -> None:
    """Which change was it? A recipe's changes, each added to its parent and each taken from the recipe.

    Example: stemma ablate roberta@tiny --corpus notes.txt --tokens 1000000 --out lab
    """
    from stemma.lab.comparison import ablate as run_it

    names, changes = _split_recipes(recipe)
    if len(names) != 1:
        raise UserError(f"one recipe is ablated at a time, and {len(names)} are given; `stemma compare` takes several.")
    told = [list(filter(None, one.replace(" ", ",").split(","))) for one in group or []]
    found = run_it(names[0], corpus, lab.out, against=against, group=told, apart=apart or [], changes=changes,
                   **vars(budget), **tasks.options(), reading=text.reading(), command=_command(), **lab.options(),
                   show=sys.stderr.isatty())
    finish(found, lab.out, json, lab.dry_run, lab.processes)


def _split_recipes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Recipes, and `key=value` changes."""
    names, changes = [word for word in words if "=" not in word], [word for word in words if "=" in word]
    if not names:
        raise UserError("no recipe is given; `stemma tree` lists all of them.")
    return names, changes


def _command() -> str:
    """As it was typed."""
    return shlex.join(["stemma", *sys.argv[1:]])


def finish(results: dict[str, Any], out: Path, as_json: bool, dry_run: bool = False, processes: int = 1) -> None:
    emit(results, as_json, lambda: show_plan(results, processes) if dry_run else show_results(results, out))


def show_plan(plan: dict[str, Any], processes: int) -> None:
    from stemma.progress import format_duration

    print(f"{plan['title']}\n{pluralize(plan['cells'], 'cell')}: {pluralize(len(plan['seeds']), 'seed')} of")
    rows = [(one["variant"], pluralize(one["steps"], "step"), pluralize(one["tokens"], "token"),
             f"{one['flops']:.2g} FLOPs", f"{one['parameters'] / 1e6:.1f} M parameters",
             format_duration(one["seconds"]))
            for one in plan["variants"]]
    print("\n".join(f"  {line}" for line in align_columns(rows)))
    for name, listed in (("hidden", plan["details"].get("hidden", [])),
                         ("impossible", plan["details"].get("impossible", []))):
        for one in listed:
            print(f"  {name}: {one.get('key') or one.get('variant')}: {one['why']}")
    print(f"about {format_duration(plan['seconds'])} with {processes} process{'' if processes == 1 else 'es'}")


def show_results(results: Any, out: Path) -> None:
    from stemma.lab.report.lab_phrases import (
        failure_sentences,
        format_verdict,
        headline,
        metric_differences,
        multiple_testing_note,
    )

    print(headline(results))
    measures = results["measures"]
    rows = [("", *(one["title"] for one in measures))]
    for row in results["table"]:
        told = [row["scores"].get(one["key"]) for one in measures]
        rows.append((row["variant"], *("" if one is None else f"{one['mean']:.4g}" + (
            f" ± {one['spread']:.2g}" if one["spread"] is not None else "") for one in told)))
    print("\n".join(f"  {line}" for line in align_columns(rows)))
    for measure in measures[:1] if results["differences"] else []:
        print(f"{measure['title']}, {'higher' if measure['higher'] else 'lower'} is better:")
        pairs = [(f"{one['a']} -> {one['b']}", format_verdict(one)) for one in metric_differences(results,
                                                                                                  measure["key"])]
        print("\n".join(f"  {line}" for line in align_columns(pairs)))
    for line in filter(None, [multiple_testing_note(results), *failure_sentences(results)]):
        print(line)
    print(f"{out / 'report.html'} shows it all; report.md and results.json lie beside it.")
