"""A sweep: fine-tuning runs over learning rates and seeds; the best on the dev set becomes the result.

On small data sets, scores vary by points between seeds (BERT also restarts and selects on the dev set,
arXiv:1810.04805, section 4.1). So the report has the best run, and the mean and standard deviation over seeds. Each
trial is an ordinary run in `OUT/trials`; finished trials are not repeated.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stemma.atomic_files import atomic_folder, remove_leftovers
from stemma.checksummed_files import verify_file, write_file, write_object
from stemma.device import choose_device
from stemma.errors import Interrupted, UserError
from stemma.exchange.load import load
from stemma.recipe_loading import COMMAND_LINE, Recipe
from stemma.task_config import TaskConfig, registered_parts
from stemma.tasks.kinds import head_task
from stemma.tasks.metrics import metrics_for
from stemma.tasks.runs import finetune_run
from stemma.tasks.runs.baseline_scores import score_baselines
from stemma.tasks.runs.build_objective import build_task_objective
from stemma.tasks.runs.compute_metrics import compute_metrics
from stemma.tasks.runs.dev_score import model_outputs, selection_score
from stemma.tasks.runs.finetune_run import (
    TOKENIZER,
    input_encoder_for,
    predictions_to_json,
    read_split,
    split_file,
    write_jsonl,
)
from stemma.tasks.runs.finetune_spec import HeadFinetuneSpec
from stemma.text.tokenizer import Tokenizer
from stemma.training.run_folder import MODEL, RECIPE, RESULT, RunConfig, read_result, read_run
from stemma.training.run_lock import lock_run
from stemma.training.trainer import TrainingDivergedError

logger = logging.getLogger(__name__)

FOLDER = "trials"
HELD_OUT = ("dev", "test")
REPORTED_KEYS = ("metrics", "steps", "best_step", "seconds")  # of each trial


@dataclass(frozen=True)
class Sweep:
    """The grid: every learning rate (default: that of the recipe) with every seed."""

    rates: tuple[float, ...] = ()
    restarts: int = 1
    ensemble: bool = False

    @classmethod
    def from_cli(cls, rates: str | None, restarts: int, ensemble: bool) -> Sweep | None:
        """Parse the command-line options; None: a single run."""
        try:
            parsed = tuple(float(word) for word in rates.split(",")) if rates is not None else ()
        except ValueError as error:
            raise UserError(f'--rates is "{rates}"; write numbers with commas between them, such as 1e-5,2e-5,5e-5.') \
                from error
        sweep = cls(parsed, restarts, ensemble)
        return sweep if parsed or restarts > 1 else None

    def __post_init__(self) -> None:
        if not all(0 < rate < math.inf for rate in self.rates):
            raise UserError(f"--rates are numbers greater than 0, not {', '.join(f'{rate:g}' for rate in self.rates)}.")
        if len(self.rates) == 1 or len(set(self.rates)) < len(self.rates):
            raise UserError("--rates compares several different learning rates; for a single one write "
                            f"training.learning_rate={self.rates[0]:g} instead.")
        if self.restarts < 1:
            raise UserError(f"--restarts must be 1 or more, not {self.restarts}.")
        if self.ensemble and self.restarts < 2:
            raise UserError("--ensemble joins the models of several restarts; add --restarts 3, say.")

    def options(self) -> dict[str, Any]:
        """The command-line options that repeat this sweep."""
        return {**({"rates": ",".join(f"{rate:g}" for rate in self.rates)} if self.rates else {}),
                **({"restarts": self.restarts} if self.restarts > 1 else {}),
                **({"ensemble": True} if self.ensemble else {})}


@dataclass(frozen=True)
class SweepRun:
    """One trial of a sweep."""

    folder: Path
    learning_rate: float
    seed: int
    result: dict[str, Any] | None = None  # None: not finished, or diverged

    def summary(self) -> dict[str, Any]:
        """The entry of this trial in the result of the sweep."""
        setting = {"trial": self.folder.name, "rate": self.learning_rate, "seed": self.seed}
        if self.result is None:
            return {**setting, "diverged": True}
        return {**setting, **{key: self.result[key] for key in REPORTED_KEYS if key in self.result}}


def run_to_end(run: Path, show: bool) -> dict[str, Any]:
    """Run the remaining trials, select the best, and publish it as the result of the run."""
    found = finetune_run.find_learning_rate(run)  # once, for all trials
    recipe, run_config = read_run(run)
    spec = HeadFinetuneSpec.from_run_config(run_config)
    task_config = next(iter(spec.parse_task_configs().values()))
    planned, finished = planned_runs(run, recipe, run_config), []
    for trial_number, trial in enumerate(planned, 1):
        finished.append(run_one(run, trial, recipe, run_config, show))
        result = finished[-1].result
        outcome = "diverged" if result is None else _format_metrics(task_config, result["metrics"]["dev"])
        logger.info(f"{trial_number} of {len(planned)} · learning rate {trial.learning_rate:g}, seed {trial.seed} · "
                    f"dev: {outcome}")
    groups = group_by_learning_rate(finished)
    if not any(trial.result for trial in finished):
        raise UserError(f"the loss diverged in all {len(finished)} trials; start again with lower --rates, or a lower "
                        "training.learning_rate.")
    summary = [summarize_learning_rate(task_config, group) for group in groups]
    group = max(groups, key=lambda group: _rank(task_config, group))
    best = max((trial for trial in group if trial.result), key=lambda trial: _selection_score(task_config, trial))
    assert best.result is not None
    result = {**best.result, "run": str(run), "trials": [trial.summary() for trial in finished], "rates": summary,
              "chosen": {"trial": best.folder.name, "rate": best.learning_rate, "seed": best.seed},
              **({"learning_rate_search": found} if found else {})}
    for line in summary:
        logger.info(_format_summary(task_config, line))
    if spec.trials and spec.trials["ensemble"]:
        result["ensemble"] = score_ensemble(run, task_config, [trial.folder for trial in group if trial.result])
        logger.info(f"ensemble, dev: {_format_metrics(task_config, result['ensemble']['dev'])}")
    if spec.baseline is not False:
        examples = {split: read_split(run, split, task_config) for split in finetune_run.SPLITS}
        result |= score_baselines({task_config.name: task_config}, {task_config.name: examples}, result["metrics"],
                                  tried_rates=len(groups) > 1)
    publish_best(run, best.folder, task_config)
    write_object(run / RESULT, result)
    return result


def planned_runs(run: Path, recipe: Recipe, run_config: RunConfig) -> list[SweepRun]:
    """The trials of the grid."""
    sweep = HeadFinetuneSpec.from_run_config(run_config).trials
    assert sweep is not None
    rates = sweep["rates"] or [recipe.settings.training.learning_rate]
    return [SweepRun(run / FOLDER / f"rate-{rate}-seed-{seed}", rate, seed)
            for rate in rates for seed in range(run_config.seed, run_config.seed + sweep["restarts"])]


def run_one(run: Path, sweep_run: SweepRun, recipe: Recipe, run_config: RunConfig, show: bool) -> SweepRun:
    """Start or resume a trial; returns it with its result."""
    if not sweep_run.folder.is_dir():
        create_run(run, sweep_run, recipe, run_config)
    result = read_result(sweep_run.folder, f"delete {sweep_run.folder}, and `stemma resume {run}` tries it again.")
    try:
        if result is None:
            with lock_run(sweep_run.folder):
                result = finetune_run.run_to_end(sweep_run.folder, show)
    except TrainingDivergedError:
        return sweep_run
    except Interrupted:
        raise Interrupted(f"stopped in {sweep_run.folder.name} and saved; `stemma resume {run}` goes on from there.") \
            from None
    shutil.rmtree(sweep_run.folder / "checkpoints", ignore_errors=True)  # a finished trial only needs its model
    return replace(sweep_run, result=result)


def create_run(run: Path, sweep_run: SweepRun, recipe: Recipe, run_config: RunConfig) -> None:
    """Create the run folder of a trial: the same examples with another learning rate or seed."""
    spec = replace(HeadFinetuneSpec.from_run_config(run_config), trials=None, find_rate=None,
                   baseline=False)  # the baseline is fitted once for all
    task_configs = spec.parse_task_configs().values()
    if sweep_run.folder.parent.is_dir():
        remove_leftovers(sweep_run.folder.parent)
    with atomic_folder(sweep_run.folder, checksums=False) as folder:
        shutil.copytree(run / TOKENIZER, folder / TOKENIZER)
        for task_config in task_configs:
            for file in (split_file(split, task_config) for split in finetune_run.SPLITS):
                if (run / file).is_file():
                    verify_file(run / file, "bring it back, or start the fine-tune again in another folder.")
                    shutil.copyfile(run / file, folder / file)
        replace(run_config, seed=sweep_run.seed, task=spec.to_json()).write(folder)
        if sweep_run.learning_rate != recipe.settings.training.learning_rate:
            recipe = recipe.with_changes({"training.learning_rate": sweep_run.learning_rate}, COMMAND_LINE)
        write_file(folder / RECIPE, recipe.to_toml(registered_parts(task_configs)))


def publish_best(run: Path, best: Path, task_config: TaskConfig) -> None:
    """Copy model, predictions and log of the best trial to the run folder."""
    files = [file for file in (RECIPE, "log.jsonl", *(split_file(split, task_config) for split in HELD_OUT))
             if (best / file).is_file()]
    for file in files:
        verify_file(best / file, f"delete {best}, and `stemma resume {run}` tries it again.")
    with atomic_folder(run / MODEL, overwrite=True, checksums=False) as folder:
        shutil.copytree(best / MODEL, folder, dirs_exist_ok=True)
    for file in files:
        write_file(run / file, (best / file).read_bytes())


# --- results ----------------------------------------------------------------------------------------------------------


def group_by_learning_rate(runs: Sequence[SweepRun]) -> list[list[SweepRun]]:
    rates = dict.fromkeys(trial.learning_rate for trial in runs)
    return [[trial for trial in runs if trial.learning_rate == rate] for rate in rates]


def _selection_score(task_config: TaskConfig, sweep_run: SweepRun) -> float:
    assert sweep_run.result is not None
    return selection_score(task_config, sweep_run.result["metrics"]["dev"])


def _rank(task_config: TaskConfig, group: Sequence[SweepRun]) -> tuple[int, float]:
    """Sort key of a learning rate: the number of runs that did not diverge, then their mean score."""
    scores = [_selection_score(task_config, trial) for trial in group if trial.result]
    return len(scores), float(np.mean(scores)) if scores else -math.inf


def summarize_learning_rate(task_config: TaskConfig, group: Sequence[SweepRun]) -> dict[str, Any]:
    """Mean, sample standard deviation (`spread`) and best value of every metric over the seeds of one learning rate."""
    summary: dict[str, Any] = {"rate": group[0].learning_rate, "seeds": [trial.seed for trial in group if trial.result]}
    results = [trial.result["metrics"] for trial in group if trial.result]
    for split in HELD_OUT:
        for metric in task_config.metrics:
            values = [metrics[split][metric] for metrics in results if metric in metrics.get(split, {})]
            if values:
                std = float(np.std(values, ddof=1)) if len(values) > 1 else None
                higher_is_better = metrics_for(task_config.kind)[metric].higher_is_better
                best = max(values) if higher_is_better else min(values)
                summary.setdefault(split, {})[metric] = {"mean": float(np.mean(values)), "spread": std, "best": best}
    return summary


def score_ensemble(run: Path, task_config: TaskConfig, members: Sequence[Path]) -> dict[str, Any]:
    """Metrics of the ensemble, which averages the logits of its members; also writes its predictions."""
    objective = build_task_objective(task_config, input_encoder_for(task_config, Tokenizer.load(run / TOKENIZER)))
    examples = {split: read_split(run, split, task_config) for split in HELD_OUT}
    items = {split: objective.encode(labelled) for split, labelled in examples.items() if labelled}
    sums: dict[str, list[np.ndarray]] = {}
    for folder in members:
        model = load(folder / MODEL, choose_device())
        for split, encoded in items.items():
            outputs = model_outputs(model, objective, encoded)
            previous = sums.get(split, [np.zeros_like(output) for output in outputs])
            sums[split] = [total + output for total, output in zip(previous, outputs, strict=True)]
    metrics: dict[str, Any] = {"members": len(members)}
    kind = head_task(task_config.kind)
    options = task_config.values
    for split, encoded in items.items():
        predictions = objective.postprocess(encoded, [total / len(members) for total in sums[split]], examples[split])
        if split == "dev":
            options = kind.tune(task_config, examples[split], predictions)
        predictions = kind.apply_options(options, predictions)
        write_jsonl(run / f"ensemble-{split_file(split, task_config)}",
                    predictions_to_json(task_config, examples[split], predictions))
        metrics[split] = compute_metrics(task_config, examples[split], predictions)
    return metrics


def _format_metrics(task_config: TaskConfig, metrics: dict[str, object]) -> str:
    return " · ".join(f"{name} {metrics[name]:.4g}" for name in task_config.metrics)


def _format_summary(task_config: TaskConfig, summary: dict[str, Any]) -> str:
    """learning rate 2e-05 · dev: accuracy 0.9123 ± 0.0045, best 0.9167 (3 seeds)"""
    parts = []
    for split in HELD_OUT:
        if task_config.metrics[0] in summary.get(split, {}):
            values = summary[split][task_config.metrics[0]]
            std = "" if values["spread"] is None else f" ± {values['spread']:.2g}"
            parts.append(f"{split}: {task_config.metrics[0]} {values['mean']:.4g}{std}, best {values['best']:.4g}")
    seeds = len(summary["seeds"])
    return " · ".join([f"learning rate {summary['rate']:g}", *parts, f"{seeds} seed{'s' if seeds != 1 else ''}"])
