"""`report.html` of a finished run: its curve against the unigram baseline, its numbers, its recipe, its command."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from stemma.errors import UserError, counted
from stemma.lab.report.page import Page
from stemma.lineage import COMMAND_LINE, Recipe, diff, recipe
from stemma.objectives.absent import ORIGIN as ABSENT
from stemma.schema.layers import at, flatten, spell
from stemma.stored import read_lines
from stemma.training.run import Plan, Reading, read_result, read_run

logger = logging.getLogger(__name__)

REPORT = "report.html"
POINTS = 60  # of a training curve: single steps are too noisy to be read


def write_report(run: str | Path) -> Path:
    """Draw what the run left in log.jsonl, recipe.toml and result.json."""
    run = Path(run)
    chosen, plan = read_run(run)
    result = read_result(run)
    if result is None:
        raise UserError(f"{run} is not finished; `stemma resume {run}` goes on, and then there is something to report.")
    what = "pre-training" if plan.task is None else f"fine-tuning ({plan.task['kind']})"
    page = Page(f"{chosen.label}: a {what} run").lead(chosen.summary, _headline(result))
    baselines = {"unigram": result["unigram_loss"]} if result.get("unigram_loss") is not None else {}
    page.section("How it learned").figure(draw_curve(run, baselines), _caption(result))
    if tasks := task_losses(run):
        page.figure(draw_tasks(tasks, result.get("baselines") or {}),
                    "Each task by itself, from the moment it joins. Strong: on held-out text; thin: on the batches; "
                    "dashed: what knowing only how often each answer occurs would lose.")
    page.table(["", "value"], [*_rows(result), *_score_rows(result.get("metrics", {}))])
    page.section("The recipe", f"{chosen.title}{f', {chosen.paper}' if chosen.paper else ''}.")
    add_changes(page, chosen)
    page.section("Do it again").code(command(chosen, plan, run))
    return page.write(run / REPORT)


def try_report(run: str | Path) -> None:
    """The report, or a word on why there is none: a finished run is not lost for want of a drawing."""
    try:
        write_report(run)
    except Exception as error:
        logger.warning(f"no report was written for {run} ({type(error).__name__}: {error}).")


def draw_curve(run: Path, baselines: Mapping[str, float]) -> str:
    """Held-out and training loss by million tokens, against constant baselines."""
    from stemma.lab.report.plots import learning_curve

    log = _log(run)
    held_out = {entry["tokens"] / 1e6: entry["validation_loss"] for entry in log
                if entry.get("validation_loss") is not None}
    training = [(entry["tokens"] / 1e6, entry["loss"]) for entry in log if entry.get("loss") is not None]
    series: dict[str, Sequence[tuple[float, float]]] = {"held-out": list(held_out.items()),
                                                        "training": _thinned(training)}
    return learning_curve({name: points for name, points in series.items() if points}, baselines,
                          "million tokens read", "loss in nats (lower is better)")


def task_losses(run: Path) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Of a run of several tasks: each one's held-out and training losses by million tokens read."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for entry in _log(run):
        for key, name in (("validation_losses", "held-out"), ("losses", "training")):
            for task, loss in (entry.get(key) or {}).items():
                if loss is not None:
                    found.setdefault(task, {}).setdefault(name, []).append((entry["tokens"] / 1e6, loss))
    return found if len(found) > 1 else {}


def _log(run: Path) -> list[dict[str, Any]]:
    return read_lines(run / "log.jsonl", "there is no curve without it.")


def draw_tasks(tasks: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
               baselines: Mapping[str, float]) -> str:
    from stemma.lab.report.plots import small_curves

    panels = {name: ({"held-out": series.get("held-out", []), "training": _thinned(series.get("training", []))},
                     baselines.get(name)) for name, series in tasks.items()}
    drawn = {name: ({key: points for key, points in series.items() if points}, baseline)
             for name, (series, baseline) in panels.items()}
    return small_curves(drawn, "million tokens read", "loss in nats, task by task (lower is better)")


def add_changes(page: Page, chosen: Recipe) -> None:
    """What the run changed from the recipe of its name."""
    try:
        changes = diff(recipe(chosen.label), chosen)
    except UserError:  # a recipe of the user's own: nothing to compare it with
        page.text("Every value, with who set it, stands in `recipe.toml`.")
        return
    if not changes:
        page.text(f"Nothing was changed from `{chosen.label}`.")
        return
    page.table(["key", chosen.label, "this run"],
               [[f"`{change.key}`", value_text(change.before),
                 "removed" if change.after is None else value_text(change.after)] for change in changes],
               f"What this run changed from `{chosen.label}`; all else is as `stemma show {chosen.label}` says.")


def command(chosen: Recipe, plan: Plan, run: Path) -> str:
    """What to type for the same run."""
    if plan.task is None:
        words = ["stemma", "pretrain", chosen.label]
        options: dict[str, Any] = {"corpus": plan.text or [str(plan.corpus)], "target": plan.target,
                                   "from": [plan.start] if plan.start else []}
    else:
        named = plan.task.get("name", plan.task["kind"])  # a data set, or the kind of the task
        verb = plan.task.get("command", ["finetune", named])
        words, options = ["stemma", *verb, "--model", str(plan.start)], plan.task["options"]
    for key, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            words += [f"--{key.replace('_', '-')}", *([] if one is True else [str(one)])]
    # of several stages, the budget is that of one
    length = {plan.budget.unit: plan.budget.amount} if plan.task is None or "length" not in plan.task \
        else plan.task["length"]
    words += ["--out", str(run), *(word for unit, amount in length.items() for word in (f"--{unit}", f"{amount:.12g}")),
              "--seed", str(plan.seed)]
    usual = asdict(Reading())
    for key, value in asdict(plan.reading).items():
        words += [f"--{key}", value] if value != usual[key] else []
    return shlex.join([*words, *(typed_changes(chosen) if plan.task is None else plan.task["changes"])])


def typed_changes(chosen: Recipe) -> list[str]:
    """The `key=value` pairs of the command line, and what came of tasks that the corpus had nothing for."""
    flat = flatten(chosen.values)
    stated = [f"{key}={spell(value)}" for key, value in flat.items() if chosen.origin[key] == COMMAND_LINE
              or (chosen.origin[key] == ABSENT and key.startswith("objective."))]
    try:
        base = recipe(chosen.label)
    except UserError:
        return stated
    size = "tokenizer.vocab_size"
    if chosen.origin[size] == "corpus" and flat[size] > at(base.values, size):  # more was asked for than the text has
        stated.append(f"{size}={flat[size]}")
    gone = [change.key for change in diff(base, chosen) if change.after is None]
    # what went away with an old kind needs no word: whoever sets the new kind drops it
    by_kind = {key.removesuffix(".kind") for key in flat if key.endswith(".kind")
               and flat[key] != at(base.values, key)}
    return [f"remove={key}" for key in gone if key.rpartition(".")[0] not in by_kind] + stated


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most POINTS means of neighbouring points."""
    if not points:
        return []
    groups = np.array_split(np.array(points), min(POINTS, len(points)))
    return [(float(group[:, 0].mean()), float(group[:, 1].mean())) for group in groups]


def _headline(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    loss, unigram = result.get("validation_loss"), result.get("unigram_loss")
    against = f", where word frequencies alone lose {unigram:.3f}" if unigram is not None else ""
    measured = [(f"{loss:.3f}", f"nats lost on held-out text{against}")] if loss is not None else []
    return [*measured, (f"{result['tokens'] / 1e6:.2f} M", f"tokens read in {result['seconds']:,.0f} s"),
            (f"{result['parameters'] / 1e6:.2f} M", "parameters")]


def _rows(result: Mapping[str, object]) -> list[list[str]]:
    named = {"steps": "steps", "tokens": "tokens", "loss": "training loss, last step (nats)",
             "validation_loss": "held-out loss (nats)", "unigram_loss": "held-out loss of the unigram baseline (nats)",
             "tokens_per_second": "tokens a second", "seconds": "seconds", "parameters": "parameters",
             "precision": "number format", "threads": "threads"}
    return [[name, value_text(result[key])] for key, name in named.items() if result.get(key) is not None]


def _score_rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    """Every number that a fine-tune was scored by, with what it was counted on."""
    return [[f"{name}: {key.replace('tasks.', '')}", value_text(value)] for name, scores in metrics.items()
            for key, value in flatten(scores).items()]


def _caption(result: Mapping[str, Any]) -> str:
    return (f"Loss over {counted(result['steps'], 'step')}: on text held out from this run, and on the batches "
            "themselves (means over stretches). Dashed: what knowing only how often each token occurs would lose.")


def value_text(value: object) -> str:
    """A value of a recipe or a result as a person reads it."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return "present"
    if isinstance(value, bool | list):
        return spell(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.6g}".replace("e-0", "e-") if isinstance(value, float) else str(value)
