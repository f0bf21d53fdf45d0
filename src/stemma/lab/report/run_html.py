"""`report.html` of a finished run: learning curve against the unigram baseline, results, recipe, command."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from stemma.checksummed_files import read_verified_lines
from stemma.errors import UserError, pluralize
from stemma.lab.report.html_report import HtmlReport
from stemma.objectives.missing_data import ORIGIN as ABSENT
from stemma.recipe_loading import COMMAND_LINE, Recipe, diff, recipe
from stemma.schema.overrides import flatten, format_value, get_by_path
from stemma.training.run_folder import RunConfig, TextReadingOptions, read_result, read_run

logger = logging.getLogger(__name__)

REPORT = "report.html"
MAX_POINTS = 60  # of a training curve: single steps are too noisy to read


def write_report(run: str | Path) -> Path:
    """Write the report of a run from its log.jsonl, recipe.toml and result.json."""
    run = Path(run)
    run_recipe, run_config = read_run(run)
    result = read_result(run)
    if result is None:
        raise UserError(f"{run} is not finished; `stemma resume {run}` goes on, and then there is something to report.")
    kind = "pre-training" if run_config.task is None else f"fine-tuning ({run_config.task['kind']})"
    page = HtmlReport(f"{run_recipe.label}: a {kind} run").intro(run_recipe.summary, _headline(result))
    baselines = {"unigram": result["unigram_loss"]} if result.get("unigram_loss") is not None else {}
    page.section("Learning curve").figure(draw_curve(run, baselines), _caption(result))
    if tasks := objective_losses(run):
        page.figure(draw_objectives(tasks, result.get("baselines") or {}),
                    "Each objective separately, from its first step. Thick: held-out text; thin: training batches; "
                    "dashed: the baseline that knows only how often each label occurs.")
    page.table(["", "value"], [*_rows(result), *_score_rows(result.get("metrics", {})),
                               *_baseline_rows(result.get("baseline", {}).get("linear", {}))])
    page.section("The recipe", f"{run_recipe.title}{f', {run_recipe.paper}' if run_recipe.paper else ''}.")
    add_changes(page, run_recipe)
    page.section("Do it again").code(run_command(run_recipe, run_config, run))
    return page.write(run / REPORT)


def try_report(run: str | Path) -> None:
    """Write the report, or log why it failed: a plotting error must not fail a finished run."""
    try:
        write_report(run)
    except Exception as error:
        logger.warning(f"no report was written for {run} ({type(error).__name__}: {error}).")


def draw_curve(run: Path, baselines: Mapping[str, float]) -> str:
    """Held-out and training loss by millions of tokens, against constant baselines."""
    from stemma.lab.report.plots import learning_curve

    log = _log(run)
    held_out = {entry["tokens"] / 1e6: entry["validation_loss"] for entry in log
                if entry.get("validation_loss") is not None}
    training = [(entry["tokens"] / 1e6, entry["loss"]) for entry in log if entry.get("loss") is not None]
    series: dict[str, Sequence[tuple[float, float]]] = {"held-out": list(held_out.items()),
                                                        "training": _thin_points(training)}
    return learning_curve({name: points for name, points in series.items() if points}, baselines,
                          "million training tokens", "loss in nats (lower is better)")


def objective_losses(run: Path) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Held-out and training losses of each objective by millions of tokens; empty for a single objective."""
    losses: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for entry in _log(run):
        for key, name in (("validation_losses", "held-out"), ("losses", "training")):
            for task, loss in (entry.get(key) or {}).items():
                if loss is not None:
                    losses.setdefault(task, {}).setdefault(name, []).append((entry["tokens"] / 1e6, loss))
    return losses if len(losses) > 1 else {}


def _log(run: Path) -> list[dict[str, Any]]:
    return read_verified_lines(run / "log.jsonl", "there is no curve without it.")


def draw_objectives(tasks: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
                    baselines: Mapping[str, float]) -> str:
    from stemma.lab.report.plots import small_curves

    panels = {name: ({"held-out": series.get("held-out", []), "training": _thin_points(series.get("training", []))},
                     baselines.get(name)) for name, series in tasks.items()}
    nonempty = {name: ({key: points for key, points in series.items() if points}, baseline)
                for name, (series, baseline) in panels.items()}
    return small_curves(nonempty, "million training tokens", "loss in nats by objective (lower is better)")


def add_changes(report: HtmlReport, run_recipe: Recipe) -> None:
    """What the run changed from the recipe of its name."""
    try:
        changes = diff(recipe(run_recipe.label), run_recipe)
    except UserError:  # the user's own recipe: there is nothing to compare it with
        report.text("`recipe.toml` lists every value with its origin.")
        return
    if not changes:
        report.text(f"No changes from `{run_recipe.label}`.")
        return
    report.table(["key", run_recipe.label, "this run"],
                 [[f"`{change.key}`", value_text(change.before),
                   "removed" if change.after is None else value_text(change.after)] for change in changes],
                 f"Changes of this run from `{run_recipe.label}`; `stemma show {run_recipe.label}` prints all other "
                 "values.")


def run_command(run_recipe: Recipe, run_config: RunConfig, run: Path) -> str:
    """The command that repeats the run."""
    if run_config.task is None:
        words = ["stemma", "pretrain", run_recipe.label]
        options: dict[str, Any] = {"corpus": run_config.text or [str(run_config.corpus)], "target": run_config.target,
                                   "from": [run_config.start] if run_config.start else [],
                                   **{f"{part}-from": path for part, path in run_config.halves.items()},
                                   "vectors": [run_config.vectors] if run_config.vectors else []}
    else:
        task = run_config.task.get("name", run_config.task["kind"])  # a data set, or the kind of the task
        command = run_config.task.get("command", ["finetune", task])
        options = run_config.task["options"]
        start = run_recipe.label if "vectors" in options else str(run_config.start)  # built over word vectors
        words = ["stemma", *command, "--model", start]
    for key, value in options.items():
        for item in value if isinstance(value, list) else [value]:
            words += [f"--{key.replace('_', '-')}", *([] if item is True else [str(item)])]
    # if a fine-tune has several stages, the run's budget is that of one stage
    length = (run_config.task or {}).get("length", {run_config.budget.unit: run_config.budget.amount})
    words += ["--out", str(run), *(word for unit, amount in length.items() for word in (f"--{unit}", f"{amount:.12g}")),
              "--seed", str(run_config.seed)]
    defaults = asdict(TextReadingOptions())
    for key, value in asdict(run_config.reading).items():
        words += [f"--{key}", value] if value != defaults[key] else []
    changes = command_line_changes(run_recipe) if run_config.task is None else run_config.task["changes"]
    return shlex.join([*words, *changes])


def command_line_changes(run_recipe: Recipe) -> list[str]:
    """The `key=value` pairs of the command line, and what followed from objectives that the corpus has no data for."""
    flat = flatten(run_recipe.values)
    changes = [f"{key}={format_value(value)}" for key, value in flat.items() if run_recipe.origin[key] == COMMAND_LINE
               or (run_recipe.origin[key] == ABSENT and key.startswith("objective."))]
    try:
        base = recipe(run_recipe.label)
    except UserError:
        return changes
    size = "tokenizer.vocab_size"
    # a larger vocabulary was requested than the text could fill
    if run_recipe.origin[size] == "corpus" and flat[size] > get_by_path(base.values, size):
        changes.append(f"{size}={flat[size]}")
    removed = [change.key for change in diff(base, run_recipe) if change.after is None]
    # setting a new kind removes the keys of the old one, so they need no `remove`
    by_kind = {key.removesuffix(".kind") for key in flat if key.endswith(".kind")
               and flat[key] != get_by_path(base.values, key)}
    return [f"remove={key}" for key in removed if key.rpartition(".")[0] not in by_kind] + changes


def _thin_points(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most MAX_POINTS means of neighbouring points."""
    if not points:
        return []
    groups = np.array_split(np.array(points), min(MAX_POINTS, len(points)))
    return [(float(group[:, 0].mean()), float(group[:, 1].mean())) for group in groups]


def _headline(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    loss, unigram = result.get("validation_loss"), result.get("unigram_loss")
    against = f" (unigram baseline: {unigram:.3f})" if unigram is not None else ""
    losses = [(f"{loss:.3f}", f"held-out loss in nats{against}")] if loss is not None else []
    return [*losses, (f"{result['tokens'] / 1e6:.2f} M", f"training tokens in {result['seconds']:,.0f} s"),
            (f"{result['parameters'] / 1e6:.2f} M", "parameters")]


def _rows(result: Mapping[str, object]) -> list[list[str]]:
    labels = {"steps": "steps", "tokens": "tokens", "loss": "training loss, last step (nats)",
              "validation_loss": "held-out loss (nats)", "unigram_loss": "held-out loss of the unigram baseline (nats)",
              "tokens_per_second": "tokens per second", "seconds": "seconds", "parameters": "parameters",
              "precision": "precision", "threads": "threads"}
    return [[label, value_text(result[key])] for key, label in labels.items() if result.get(key) is not None]


def _score_rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    """All metrics of a fine-tune, by split."""
    return [[f"{name}: {key.replace('tasks.', '')}", value_text(value)] for name, scores in metrics.items()
            for key, value in flatten(scores).items()]


def _baseline_rows(baseline: Mapping[str, Any]) -> list[list[str]]:
    return [[f"{label}, linear baseline", value] for label, value in _score_rows(
        {split: scores for split, scores in baseline.items() if split != "fit"}) if not label.endswith("examples")]


def _caption(result: Mapping[str, Any]) -> str:
    return (f"Loss over {pluralize(result['steps'], 'step')}: on text held out from this run, and on the training "
            "batches (means over several steps). Dashed: the unigram baseline, which knows only token frequencies.")


def value_text(value: object) -> str:
    """The value of a recipe key or of a result, formatted for a report."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return "present"
    if isinstance(value, bool | list):
        return format_value(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.6g}".replace("e-0", "e-") if isinstance(value, float) else str(value)
