"""`compare` and `ablate`: experiments that train recipes with the same budget, text and seeds."""

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
from stemma.cli.options import CorpusOption, NoBaselineOption, TextOptions
from stemma.cli.output import JsonOption, align_columns, at_least, emit
from stemma.errors import UserError, pluralize

RecipesArgument = Annotated[list[str], typer.Argument(metavar="RECIPE... [KEY=VALUE...]", show_default=False,
                                                      autocompletion=recipe_names,
                                                      help="Recipes, and changes that apply to all of them.")]
ChildArgument = Annotated[list[str], typer.Argument(metavar="RECIPE [KEY=VALUE...]", show_default=False,
                                                    autocompletion=recipe_names,
                                                    help="A recipe, and changes that apply to it and to its parent.")]


@dataclass(frozen=True)
class LabTasks:
    """The tasks that every model is fine-tuned on."""

    task: Annotated[list[str] | None, typer.Option("--task", metavar="TASK", help="Fine-tune every model on this task; "
                                                   "may be repeated, each with its --train and --dev.")] = None
    train: Annotated[list[str] | None, typer.Option(metavar="FILE", help="The task's training examples.")] = None
    dev: Annotated[list[str] | None, typer.Option(metavar="FILE", help="The task's evaluation examples.")] = None
    epochs: Annotated[float | None, typer.Option(help="Epochs of every fine-tuning; by default 3, or more if 200 steps "
                                                 "need more (at most 20).", show_default=False)] = None
    blimp: Annotated[str | None, typer.Option(metavar="DIR", help="Also score every model on the minimal pairs of this "
                                              "folder (`stemma pairs`).")] = None
    no_baseline: NoBaselineOption = False

    def options(self) -> dict[str, Any]:
        if self.no_baseline and not self.task:
            raise UserError("--no-baseline is about the scores of a --task, and none is given; leave it out.")
        return {"task": self.task or [], "train": self.train or [], "dev": self.dev or [], "epochs": self.epochs,
                "blimp": self.blimp, "baseline": not self.no_baseline}


@dataclass(frozen=True)
class LabBudget:
    """The training budget of every model, the number of seeds, and the metric that decides."""

    tokens: Annotated[int | None, typer.Option(help="Training tokens per model.")] = None
    flops: Annotated[float | None, typer.Option(help="Training FLOPs per model, such as 1e14.")] = None
    minutes: Annotated[float | None, typer.Option(help="Training minutes per model; models take turns.")] = None
    seeds: Annotated[int, at_least(1, "Number of seeds per variant (one seed gives no interval)")] = 3
    measure: Annotated[str | None, typer.Option(help="The metric that decides, such as sst2.accuracy.")] = None
    margin: Annotated[float | None, typer.Option(help="Equivalence margin of that metric: recipes within it are "
                                                 "equivalent.")] = None


@dataclass(frozen=True)
class LabFolder:
    """The folder of the experiment, and how its cells run."""

    out: Annotated[Path, typer.Option(metavar="DIR", show_default=False,
                                      help="Folder of the experiment; finished cells in it are reused.")]
    processes: Annotated[int, at_least(1, "Cells to run in parallel, each with its share of the cores")] = 1
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and the estimated time, from a "
                                                            "short trial.")] = False
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Empty --out and start again.")] = False

    def options(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "out"}


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=LAB)(compare)
    app.command(rich_help_panel=LAB)(ablate)


@computes
def compare(recipes: RecipesArgument, corpus: CorpusOption, lab: LabFolder, budget: LabBudget, tasks: LabTasks,
            text: TextOptions,
            sizes: Annotated[str | None, typer.Option(help="Train every recipe at each of these sizes, such as "
                                                      "tiny,mini,midi, and fit scaling laws.")] = None,
            json: JsonOption = False) -> None:
    """Train recipes on the same text, seeds and budget, and test which differences are significant.

    Example: stemma compare bert@tiny roberta@tiny --corpus notes.txt --tokens 1000000 --out lab
    """
    from stemma.lab.comparison import compare as run_compare

    names, changes = split_recipes(recipes)
    size_names = [size.strip() for size in sizes.split(",") if size.strip()] if sizes else []
    results = run_compare(names, corpus, lab.out, sizes=size_names, changes=changes, **vars(budget), **tasks.options(),
                          reading=text.reading(), command=_command(), **lab.options(), show=sys.stderr.isatty())
    finish(results, lab.out, json, lab.dry_run, lab.processes)


@computes
def ablate(recipe: ChildArgument, corpus: CorpusOption, lab: LabFolder, budget: LabBudget, tasks: LabTasks,
           text: TextOptions,
           against: Annotated[str | None, typer.Option(metavar="RECIPE", autocompletion=recipe_names, help="The recipe "
                                                       "to compare with; by default the parent.")] = None,
           group: Annotated[list[str] | None, typer.Option(metavar="KEY,KEY", help="Changes to apply together, "
                                                           "as one; may be repeated.")] = None,
           apart: Annotated[list[str] | None, typer.Option(metavar="KEY", help="A change to apply alone, "
                                                           "outside its group; may be repeated.")] = None,
           json: JsonOption = False) -> None:
    """Measure the contribution of each change of a recipe: add it to the parent, and remove it from the recipe.

    Example: stemma ablate roberta@tiny --corpus notes.txt --tokens 1000000 --out lab
    """
    from stemma.lab.comparison import ablate as run_ablate

    names, changes = split_recipes(recipe)
    if len(names) != 1:
        raise UserError(f"one recipe is ablated at a time, and {len(names)} are given; `stemma compare` takes several.")
    groups = [list(filter(None, keys.replace(" ", ",").split(","))) for keys in group or []]
    results = run_ablate(names[0], corpus, lab.out, against=against, group=groups, apart=apart or [], changes=changes,
                         **vars(budget), **tasks.options(), reading=text.reading(), command=_command(),
                         **lab.options(), show=sys.stderr.isatty())
    finish(results, lab.out, json, lab.dry_run, lab.processes)


def split_recipes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate recipe names from `key=value` changes."""
    names, changes = [word for word in words if "=" not in word], [word for word in words if "=" in word]
    if not names:
        raise UserError("no recipe is given; `stemma tree` lists all of them.")
    return names, changes


def _command() -> str:
    """The command line, for the report."""
    return shlex.join(["stemma", *sys.argv[1:]])


def finish(results: dict[str, Any], out: Path, as_json: bool, dry_run: bool = False, processes: int = 1) -> None:
    emit(results, as_json, lambda: show_plan(results, processes) if dry_run else show_results(results, out))


def show_plan(plan: dict[str, Any], processes: int) -> None:
    from stemma.progress import format_duration

    print(f"{plan['title']}\n{pluralize(plan['cells'], 'cell')}: {pluralize(len(plan['seeds']), 'seed')} of")
    rows = [(variant["variant"], pluralize(variant["steps"], "step"), pluralize(variant["tokens"], "token"),
             f"{variant['flops']:.2g} FLOPs", f"{variant['parameters'] / 1e6:.1f} M parameters",
             format_duration(variant["seconds"]))
            for variant in plan["variants"]]
    print("\n".join(f"  {line}" for line in align_columns(rows)))
    for change in plan["details"].get("hidden", []):
        print(f"  excluded change: {change['key']}: {change['why']}")
    for variant in plan["details"].get("impossible", []):
        print(f"  not possible: {variant['variant']}: {variant['why']}")
    print(f"estimated time: {format_duration(plan['seconds'])} with {pluralize(processes, 'process', 'processes')}")


def show_results(results: Any, out: Path) -> None:
    from stemma.lab.report.lab_phrases import (
        LINEAR_BASELINE,
        below_baseline_notes,
        failure_sentences,
        format_verdict,
        headline,
        linear_baseline,
        metric_differences,
        multiple_testing_note,
    )

    print(headline(results))
    measures = results["measures"]
    rows = [("", *(measure["title"] for measure in measures))]
    for row in results["table"]:
        scores = [row["scores"].get(measure["key"]) for measure in measures]
        rows.append((row["variant"], *("" if score is None else f"{score['mean']:.4g}" + (
            f" ± {score['spread']:.2g}" if score["spread"] is not None else "") for score in scores)))
    if linear := linear_baseline(results):
        rows.append((LINEAR_BASELINE, *(f"{linear[measure['key']]:.4g}" if measure["key"] in linear else ""
                                        for measure in measures)))
    print("\n".join(f"  {line}" for line in align_columns(rows)))
    for measure in measures[:1]:
        pairs = [(f"{difference['a']} -> {difference['b']}", format_verdict(difference))
                 for difference in metric_differences(results, measure["key"])]
        if not pairs:
            continue
        print(f"{measure['title']}, {'higher' if measure['higher'] else 'lower'} is better:")
        print("\n".join(f"  {line}" for line in align_columns(pairs)))
    for line in filter(None, [multiple_testing_note(results), *below_baseline_notes(results),
                              *results["notes"], *failure_sentences(results)]):
        print(line)
    print(f"{out / 'report.html'} is the report; report.md and results.json are in the same folder.")
