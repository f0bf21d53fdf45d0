"""The results of an experiment as plain data: `results.json`, from which both reports are made."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from stemma import version
from stemma.atomic_files import atomic_write
from stemma.checksummed_files import read_verified_lines
from stemma.errors import UserError, pluralize
from stemma.json_files import explain_damage
from stemma.lab.blimp import BLIMP, blimp_table, pairs_node
from stemma.lab.cells import Cell, distinct_cells, scores_from_json
from stemma.lab.downstream_tasks import task_metrics
from stemma.lab.experiment import Experiment, MetricInfo, Score, Variant
from stemma.lab.held_out_likelihood import METRICS
from stemma.lab.paired_differences import Difference, holm_corrected, paired_difference, sample_std
from stemma.lab.report.run_html import run_command
from stemma.lab.results_data import (
    CellEntry,
    ContributionEntry,
    DiffEntry,
    FitEntry,
    MeasureEntry,
    Results,
    RowEntry,
    ScoreEntry,
    SideEntry,
    VariantEntry,
)
from stemma.lab.task_baselines import stored_baseline
from stemma.lab.time_estimate import stored_estimate
from stemma.recipe_loading import diff, list_recipes
from stemma.training.run_folder import read_run

if TYPE_CHECKING:
    from stemma.lab.run_experiment import Lab

FILE = "results.json"
VERSION = 2
LOSS = MetricInfo("validation_loss", "held-out loss of its own task", "nats per target", False,
                  "Validation loss of the recipe's own objective; not comparable between different objectives or "
                  "tokenizers.", per_token=True, margin=0.01)
ONE_PERCENT_POINT = 0.01  # of a metric between 0 and 1: a difference that does not matter
LOWERCASE_NOTE = "{} is lowercased, so its text is easier to predict, which explains part of this difference"
COSTS = ("tokens", "steps", "flops", "seconds", "tokens_per_second", "parameters", "cell_seconds")


def write_results(lab: Lab, notes: Sequence[str] = ()) -> Results:
    """Read all cells, compare them, and write results.json and the two reports. `notes` are about this evaluation."""
    from stemma.lab.report.lab_html import write_lab_report
    from stemma.lab.report.lab_markdown import write_lab_markdown

    results = collect_results(lab, notes)
    atomic_write(lab.folder / FILE, json.dumps(results, indent=1))
    write_lab_report(results, lab.folder)
    write_lab_markdown(results, lab.folder)
    return results


def collect_results(lab: Lab, notes: Sequence[str] = ()) -> Results:
    experiment = lab.experiment
    cells = []
    for cell in lab.cells:
        with explain_damage(cell.folder, cell.retry_advice):
            cells.append(_cell_row(experiment, cell))
    scores = {(cell.variant.name, cell.seed): _scores(experiment, cell) for cell in lab.cells}
    measures = experiment_metrics(experiment, [key for cell_scores in scores.values() for key in cell_scores])
    table = [_variant_row(variant.name, measures, cells) for variant in experiment.variants]
    digests = {(row["variant"], row["seed"]): row["digest"] for row in cells}
    compared = PairwiseDifferences(experiment, measures, scores, digests)
    results: Results = {
        "version": VERSION, "kind": experiment.kind, "title": experiment.title, "command": experiment.command,
        "commands": {cell.variant.name: run_command(*read_run(cell.run), cell.run) for cell in lab.cells
                     if cell.seed == experiment.seeds[0] and (cell.run / "run.json").is_file()},
        "made": _environment(),
        "budget": {"unit": experiment.allowance.unit, "amount": experiment.allowance.amount},
        "seeds": list(experiment.seeds),
        "estimated_seconds": stored_estimate(lab), "elapsed_seconds": _wall_seconds(lab),
        "foretold_seconds": stored_estimate(lab), "took_seconds": _wall_seconds(lab),  # the names of version 0.1
        "data": lab.text_split.summary, "variants": [_variant(lab, variant) for variant in experiment.variants],
        "tasks": {task_key(experiment, index): task.epochs for index, task in enumerate(experiment.tasks)},
        "measures": [_measure(metric) for metric in measures], "cells": cells, "table": table,
        "differences": [{**_side(difference), "measure": key, "a": a, "b": b}
                        for key, a, b, difference in compared.all()],
        "contributions": None, "remainder": None, "hidden": experiment.details.get("hidden", []),
        "impossible": experiment.details.get("impossible", []), "diffs": _diffs(experiment), "tree": _tree(experiment),
        "scaling": None, "claim": None, "blimp": blimp_table(experiment, lab.cells),
        "baselines": {"linear": _linear_baseline(lab, measures)},
        "notes": [*experiment.details.get("notes", []), *_unscored_tasks(lab), *notes]}
    if experiment.kind == "ablate" and measures:
        results["contributions"], results["remainder"] = _contributions(experiment, measures[0], compared)
    if experiment.details.get("sizes"):
        results["scaling"] = _scaling(experiment, measures, cells)
    if experiment.kind == "claim":
        from stemma.lab.claims import claim_verdict

        results["claim"] = claim_verdict(experiment.details["claim"], results)
    return results


# --- cells ------------------------------------------------------------------------------------------------------------


def _scores(experiment: Experiment, cell: Cell) -> dict[str, Score]:
    """All scores of a cell, by the metric's key."""
    stored, result = cell.scores(), cell.result()
    if cell.variant.pretrained and (stored is None or result is None):
        return {}
    scores = scores_from_json(stored["scores"] if stored else {})
    for index, task in enumerate(experiment.tasks):
        task_result = cell.task_scores(task)
        scores |= {f"{task_key(experiment, index)}.{key}": score
                   for key, score in scores_from_json(task_result["scores"] if task_result else {}).items()}
    if experiment.blimp is not None and cell.variant.pretrained:
        scores |= scores_from_json((pairs_node(cell, experiment).result() or {"scores": {}})["scores"])
    if result is not None and result.get("validation_loss") is not None:
        scores[LOSS.key] = Score(result["validation_loss"])
    return scores


def _linear_baseline(lab: Lab, measures: Sequence[MetricInfo]) -> dict[str, float]:
    """The scores of the linear baseline, by the metric's key."""
    scores = {f"{task_key(lab.experiment, index)}.{name}": value for index, task in enumerate(lab.experiment.tasks)
              for name, value in stored_baseline(lab.experiment, task, lab.folder).items()}
    return {measure.key: scores[measure.key] for measure in measures if measure.key in scores}


def _unscored_tasks(lab: Lab) -> list[str]:
    """A sentence for each variant that is not fine-tuned, with the reason."""
    results = (cell.task_scores(task) for cell in lab.cells for task in lab.experiment.tasks)
    return list(dict.fromkeys(result["why"] for result in results if result and "why" in result))


def task_key(experiment: Experiment, index: int) -> str:
    """A task's name, with an index if it occurs more than once."""
    name = experiment.tasks[index].name
    alike = [position for position, task in enumerate(experiment.tasks) if task.name == name]
    return name if len(alike) == 1 else f"{name}-{alike.index(index) + 1}"


def _cell_row(experiment: Experiment, cell: Cell) -> CellEntry:
    stored, result = cell.scores(), cell.result()
    row: CellEntry = {"variant": cell.variant.name, "seed": cell.seed, "hash": cell.digest, "why": cell.failure(),
            "state": "failed" if cell.failure() is not None else "done", "scores": {}, "cost": {}, "curve": [],
            "digest": None}
    if stored is None or result is None:
        return row | {"scores": {key: score.value for key, score in _scores(experiment, cell).items()}}
    tasks = [cell.task_scores(task) for task in experiment.tasks]
    flops = stored["flops_a_step"]
    curve = read_verified_lines(cell.run / "log.jsonl", cell.retry_advice)
    return {
        **row,
        "scores": {key: score.value for key, score in _scores(experiment, cell).items()},
        "cost": {"tokens": result["tokens"], "steps": result["steps"], "flops": result["steps"] * flops,
                 "seconds": result["elapsed_seconds"], "tokens_per_second": result["tokens_per_second"],
                 "parameters": result["parameters"],
                 "cell_seconds": stored.get("before", 0.0) + sum(end - start
                                                                 for start, end in _work_intervals(cell, tasks))},
        "curve": [[point["tokens"], point["step"] * flops, point["tokens"] / result["tokens_per_second"],
                   point["validation_loss"]] for point in curve if point.get("validation_loss") is not None],
        "digest": stored["digest"]}


def _wall_seconds(lab: Lab) -> float:
    """Time in which at least one process worked on the lab. Of interrupted work only the duration is stored, so it is
    scaled by the parallelism of the finished work."""
    spans = {span for cell in lab.cells
             for span in _work_intervals(cell, [cell.task_scores(task) for task in lab.experiment.tasks])}
    interrupted = sum((cell.scores() or {}).get("before", 0.0) for cell in distinct_cells(lab.cells, ()))
    spent = sum(end - start for start, end in spans)
    return _union(spans) * (1 + interrupted / spent) if spent else 0.0


def _work_intervals(cell: Cell, tasks: Sequence[Mapping[str, Any] | None]) -> list[tuple[float, float]]:
    """(start, end) of every evaluation and fine-tuning of a cell."""
    return [(result["span"][0], result["span"][1]) for result in (cell.scores(), *tasks) if result]


def _union(spans: Collection[tuple[float, float]]) -> float:
    """Length of the union of the intervals."""
    total, last = 0.0, 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, last))
        last = max(last, end)
    return total


# --- measures ---------------------------------------------------------------------------------------------------------


def experiment_metrics(experiment: Experiment, scores: Sequence[str]) -> list[MetricInfo]:
    """The metrics of an experiment. The first decides: the one of --measure, or a task's, or the one that most variants
    have."""
    metrics = dict(METRICS) | {LOSS.key: LOSS, BLIMP.key: BLIMP}
    for index, task in enumerate(experiment.tasks):
        for name, metric in task_metrics(task).items():
            key = f"{task_key(experiment, index)}.{name}"
            margin = ONE_PERCENT_POINT * metric.scale if metric.higher_is_better else None
            metrics[key] = MetricInfo(key, f"{task_key(experiment, index)}: {name}", "", metric.higher_is_better,
                                      metric.description, margin=margin)
    counts = {key: scores.count(key) for key in dict.fromkeys(scores)}
    tasks = [key for key in counts if "." in key]
    order = sorted(counts, key=lambda key: (key != experiment.measure, key not in tasks, key == LOSS.key, -counts[key]))
    measures = [metrics[key] for key in order if not (metrics[key].per_token and not same_tokens(experiment))
                or key == experiment.measure]
    if experiment.margin is not None and measures:
        measures[0] = replace(measures[0], margin=experiment.margin)
    return measures


def same_tokens(experiment: Experiment) -> bool:
    """Whether all variants have the same tokenizer, so that losses per token can be compared."""
    return experiment.corpus is not None or len({json.dumps(variant.recipe.values["tokenizer"], sort_keys=True)
                                                 for variant in experiment.variants}) == 1


def check_metric(experiment: Experiment) -> None:
    """Refuse a metric that cannot decide, before anything is trained."""
    if experiment.measure is None:
        return
    tasks = {f"{task_key(experiment, index)}.{name}" for index, task in enumerate(experiment.tasks)
             for name in task_metrics(task)}
    keys = {*METRICS, LOSS.key, *tasks, *([BLIMP.key] if experiment.blimp is not None else [])}
    if experiment.measure not in keys:
        raise UserError(f'there is no measure "{experiment.measure}"; there are {", ".join(sorted(keys))}.')
    if experiment.measure == LOSS.key and not same_tokens(experiment):
        raise UserError("validation_loss is a loss per token, and these recipes have different tokenizers: longer "
                        "tokens have a higher loss each. Bits per byte divide the loss by the bytes of the text, which "
                        "are the same for all: leave --measure out, or give all recipes one corpus.")


def _variant_row(name: str, metrics: Sequence[MetricInfo], cell_rows: Sequence[CellEntry]) -> RowEntry:
    cells = [row for row in cell_rows if row["variant"] == name and row["state"] == "done"]
    scores: dict[str, ScoreEntry] = {}
    for measure in metrics:
        values = [cell["scores"][measure.key] for cell in cells if measure.key in cell["scores"]]
        if values:
            scores[measure.key] = {"mean": fmean(values), "spread": sample_std(values), "values": values}
    costs = [cell["cost"] for cell in cells if cell["cost"]]  # random weights have no training cost
    cost = {key: fmean(values[key] for values in costs) for key in COSTS} if costs else {}
    return {"variant": name, "scores": scores, "cost": cost}


class PairwiseDifferences:
    """Differences between variants, paired by their common seeds; p-values are corrected per metric."""

    def __init__(self, experiment: Experiment, metrics: Sequence[MetricInfo],
                 scores: Mapping[tuple[str, int], Mapping[str, Score]], digests: Mapping[tuple[str, int], str | None]):
        self.experiment, self.scores, self.digests = experiment, scores, digests
        self.differences: dict[tuple[str, str, str], Difference] = {}
        for measure in metrics:
            uncorrected = {(measure.key, a, b): difference for a, b in self.pairs()
                           if (difference := self._uncorrected(measure, a, b))}
            self.differences |= zip(uncorrected, holm_corrected(list(uncorrected.values()), measure.higher),
                                    strict=True)

    def pairs(self) -> list[tuple[str, str]]:
        names = {role: [variant.name for variant in self.experiment.variants if variant.role == role]
                 for role in ("parent", "child", "plus", "minus")}
        if self.experiment.kind != "ablate":
            return list(combinations([variant.name for variant in self.experiment.variants], 2))
        (parent,), (child,) = names["parent"], names["child"]
        return [(parent, child), *((parent, name) for name in names["plus"]),
                *((name, child) for name in names["minus"])]

    def between(self, metric: MetricInfo, a: str, b: str) -> Difference | None:
        return self.differences.get((metric.key, a, b))

    def _uncorrected(self, metric: MetricInfo, a: str, b: str) -> Difference | None:
        seeds = [seed for seed in self.experiment.seeds
                 if all(metric.key in self.scores.get((name, seed), {}) for name in (a, b))]
        if not seeds:
            return None
        identical = all(self.digests[a, seed] == self.digests[b, seed] for seed in seeds)
        difference = paired_difference([self.scores[a, seed][metric.key] for seed in seeds],
                                       [self.scores[b, seed][metric.key] for seed in seeds], metric.higher,
                                       identical=identical, margin=metric.margin)
        return replace(difference, note=self._lowercase_note(metric, a, b))

    def _lowercase_note(self, metric: MetricInfo, a: str, b: str) -> str | None:
        """A note if only one of the tokenizers lowercases, because lowercased text is easier to predict."""
        if metric.key not in METRICS or self.experiment.corpus is not None:
            return None
        lower = [variant.name for variant in self.experiment.variants
                 if variant.name in (a, b) and variant.recipe.settings.tokenizer.lowercase]
        return LOWERCASE_NOTE.format(lower[0]) if len(lower) == 1 else None

    def all(self) -> list[tuple[str, str, str, Difference]]:
        return [(*names, difference) for names, difference in self.differences.items()]


def _contributions(experiment: Experiment, metric: MetricInfo,
                   compared: PairwiseDifferences) -> tuple[list[ContributionEntry], float | None]:
    """The contribution of each change, added to the parent and removed from the child, and the remainder, which is
    their interaction."""
    by_role = {(variant.role, variant.change): variant.name for variant in experiment.variants}
    parent, child = by_role["parent", None], by_role["child", None]
    rows: list[ContributionEntry] = []
    for group in experiment.details["groups"]:
        plus, minus = by_role.get(("plus", group["name"])), by_role.get(("minus", group["name"]))
        added = compared.between(metric, parent, plus) if plus else None
        removed = compared.between(metric, minus, child) if minus else None
        means = [side.mean for side in (added, removed) if side is not None]
        rows.append({"change": group["name"], "keys": group["keys"], "added": _side(added) if added else None,
                     "undone": _side(removed) if removed else None, "mean": fmean(means) if means else None})
    total = compared.between(metric, parent, child)
    remainder = None if total is None else total.mean - sum(row["mean"] or 0.0 for row in rows)
    return rows, remainder


# --- entries of results.json ------------------------------------------------------------------------------------------


def _measure(metric: MetricInfo) -> MeasureEntry:
    plain: MeasureEntry = _plain(metric)
    return plain


def _side(difference: Difference) -> SideEntry:
    plain: SideEntry = _plain(difference)
    return plain


def _plain(record: MetricInfo | Difference) -> Any:
    return asdict(record)


def _variant(lab: Lab, variant: Variant) -> VariantEntry:
    tokenizer = variant.recipe.settings.tokenizer
    return {"name": variant.name, "recipe": variant.recipe.name, "size": variant.recipe.size, "role": variant.role,
            "change": variant.change,
            "tokenizer": f"{tokenizer.kind} {lab.costs.corpus(variant).tokenizer.vocab_size:,}",
            "parameters": lab.costs.step_cost(variant).parameters,
            "counts": variant.recipe.settings.network.depth.counts}


def _diffs(experiment: Experiment) -> list[DiffEntry]:
    """Changes from the first recipe to each of the others; in an ablation from the parent to the child."""
    variants = [variant for variant in experiment.variants if variant.role in ("recipe", "parent", "child")]
    return [{"a": variants[0].name, "b": other.name, "changes": [
        {"key": change.key, "from": change.before, "to": change.after}
        for change in diff(variants[0].recipe, other.recipe)]} for other in variants[1:]]


def _tree(experiment: Experiment) -> list[dict[str, Any]]:
    compared = {variant.recipe.name for variant in experiment.variants}
    return [info.to_json() | {"lit": info.name in compared} for info in list_recipes()]


def _scaling(experiment: Experiment, metrics: Sequence[MetricInfo],
             cell_rows: Sequence[CellEntry]) -> list[FitEntry]:
    from stemma.lab.scaling_laws import fit_all

    recipes = {variant.name: variant.recipe for variant in experiment.variants}
    rows = [{"recipe": recipes[cell["variant"]].name, "size": recipes[cell["variant"]].size, "seed": cell["seed"],
             **{key: cell["cost"][key] for key in ("parameters", "tokens", "flops")}, "y": cell["scores"][measure.key],
             "curve": cell["curve"], "warmup_tokens": recipes[cell["variant"]].settings.training.warmup_steps
             * cell["cost"]["tokens"] / cell["cost"]["steps"]}
            for measure in metrics[:1] for cell in cell_rows if measure.key in cell["scores"]]
    return fit_all(rows, metrics[0].key) if rows else []


def _environment() -> dict[str, str]:
    return {"stemma": version.VERSION, "python": platform.python_version(), "torch": torch.__version__,
            "machine": f"{platform.machine()}, {pluralize(os.cpu_count() or 1, 'core')}, {platform.system()}",
            "date": time.strftime("%Y-%m-%d")}
