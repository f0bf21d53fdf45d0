"""One fine-tune tried several times: at several learning rates, from several seeds; the best on the dev set is kept.

Small sets of examples are fickle: the same fine-tune from another seed may be points better or worse (BERT's authors
restart and choose by the dev set, arXiv:1810.04805, section 4.1). So what is told is the best, and the mean and spread
beside it. Each trial is an ordinary run below `SHINGLE_WORDS/trials`; one that is finished is never done again.
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
    """What is tried: every rate from every seed. No rates: the recipe's."""

    rates: tuple[float, ...] = ()
    restarts: int = 1
    ensemble: bool = False

    @classmethod
    def from_cli(cls, rates: str | None, restarts: int, ensemble: bool) -> Sweep | None:
        """From the words of a command line; None: nothing is to be tried twice."""
        try:
            stated = tuple(float(word) for word in rates.split(",")) if rates is not None else ()
        except ValueError as error:
            raise UserError(f'--rates is "{rates}"; write numbers with commas between them, such as 1e-5,2e-5,5e-5.') \
                from error
        asked = cls(stated, restarts, ensemble)
        return asked if stated or restarts > 1 else None

    def __post_init__(self) -> None:
        if not all(0 < rate < math.inf for rate in self.rates):
            raise UserError(f"--rates are numbers greater than 0, not {', '.join(f'{rate:g}' for rate in self.rates)}.")
        if len(self.rates) == 1 or len(set(self.rates)) < len(self.rates):
            raise UserError("--rates compares several different rates; for a single one write "
                            f"training.learning_rate={self.rates[0]:g} instead.")
        if self.restarts < 1:
            raise UserError(f"--restarts must be 1 or more, not {self.restarts}.")
        if self.ensemble and self.restarts < 2:
            raise UserError("--ensemble joins the models of several restarts; add --restarts 3, say.")

    def options(self) -> dict[str, Any]:
        """What was typed, to be typed again."""
        return {**({"rates": ",".join(f"{rate:g}" for rate in self.rates)} if self.rates else {}),
                **({"restarts": self.restarts} if self.restarts > 1 else {}),
                **({"ensemble": True} if self.ensemble else {})}


@dataclass(frozen=True)
class SweepRun:
    folder: Path
    learning_rate: float
    seed: int
    result: dict[str, Any] | None = None  # None: not finished, or the loss ran away

    def summary(self) -> dict[str, Any]:
        """What the result of all says of it."""
        about = {"trial": self.folder.name, "rate": self.learning_rate, "seed": self.seed}
        if self.result is None:
            return {**about, "diverged": True}
        return {**about, **{key: self.result[key] for key in REPORTED_KEYS if key in self.result}}


def run_to_end(run: Path, show: bool) -> dict[str, Any]:
    """Carry out what is left of the trials, choose among them, and put the best in place."""
    wanted, plan = read_run(run)
    facts = HeadFinetuneSpec.from_run_config(plan)
    card = next(iter(facts.parse_task_configs().values()))
    planned, done = planned_runs(run, wanted, plan), []
    for number, trial in enumerate(planned, 1):
        done.append(run_one(run, trial, wanted, plan, show))
        told = "the loss ran away" if done[-1].result is None else _format_metrics(card,
                                                                                   done[-1].result["metrics"]["dev"])
        logger.info(f"{number} of {len(planned)} · rate {trial.learning_rate:g}, seed {trial.seed} · dev: {told}")
    groups = group_by_learning_rate(done)
    if not any(trial.result for trial in done):
        raise UserError(f"the loss ran away in all {len(done)} trials; start again with lower --rates, or a lower "
                        "training.learning_rate.")
    summary = [summarize_learning_rate(card, group) for group in groups]
    group = max(groups, key=lambda group: _rank(card, group))
    best = max((trial for trial in group if trial.result), key=lambda trial: _selection_score(card, trial))
    assert best.result is not None
    result = {**best.result, "run": str(run), "trials": [trial.summary() for trial in done], "rates": summary,
              "chosen": {"trial": best.folder.name, "rate": best.learning_rate, "seed": best.seed}}
    for line in summary:
        logger.info(_format_summary(card, line))
    if facts.trials and facts.trials["ensemble"]:
        result["ensemble"] = score_ensemble(run, card, [trial.folder for trial in group if trial.result])
        logger.info(f"together, dev: {_format_metrics(card, result['ensemble']['dev'])}")
    publish_best(run, best.folder, card)
    write_object(run / RESULT, result)
    return result


def planned_runs(run: Path, recipe: Recipe, plan: RunConfig) -> list[SweepRun]:
    asked = HeadFinetuneSpec.from_run_config(plan).trials
    assert asked is not None
    rates = asked["rates"] or [recipe.settings.training.learning_rate]
    return [SweepRun(run / FOLDER / f"rate-{rate}-seed-{seed}", rate, seed)
            for rate in rates for seed in range(plan.seed, plan.seed + asked["restarts"])]


def run_one(run: Path, sweep_run: SweepRun, recipe: Recipe, plan: RunConfig, show: bool) -> SweepRun:
    """The trial with its result, from where it stands: not begun, interrupted, or finished."""
    if not sweep_run.folder.is_dir():
        create_run(run, sweep_run, recipe, plan)
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
    shutil.rmtree(sweep_run.folder / "checkpoints", ignore_errors=True)  # of a finished trial the model is enough
    return replace(sweep_run, result=result)


def create_run(run: Path, sweep_run: SweepRun, recipe: Recipe, plan: RunConfig) -> None:
    """A run of its own: the same examples, at another rate or from another seed."""
    facts = replace(HeadFinetuneSpec.from_run_config(plan), trials=None)
    cards = facts.parse_task_configs().values()
    if sweep_run.folder.parent.is_dir():
        remove_leftovers(sweep_run.folder.parent)
    with atomic_folder(sweep_run.folder, checksums=False) as place:
        shutil.copytree(run / TOKENIZER, place / TOKENIZER)
        for card in cards:
            for file in (split_file(part, card) for part in finetune_run.SPLITS):
                if (run / file).is_file():
                    verify_file(run / file, "bring it back, or start the fine-tune again in another folder.")
                    shutil.copyfile(run / file, place / file)
        replace(plan, seed=sweep_run.seed, task=facts.to_json()).write(place)
        if sweep_run.learning_rate != recipe.settings.training.learning_rate:
            recipe = recipe.with_changes({"training.learning_rate": sweep_run.learning_rate}, COMMAND_LINE)
        write_file(place / RECIPE, recipe.to_toml(registered_parts(cards)))


def publish_best(run: Path, best: Path, task_config: TaskConfig) -> None:
    """The best trial as the whole run's: its model, its answers, its course."""
    files = [file for file in (RECIPE, "log.jsonl", *(split_file(part, task_config) for part in HELD_OUT))
             if (best / file).is_file()]
    for file in files:
        verify_file(best / file, f"delete {best}, and `stemma resume {run}` tries it again.")
    with atomic_folder(run / MODEL, overwrite=True, checksums=False) as place:
        shutil.copytree(best / MODEL, place, dirs_exist_ok=True)
    for file in files:
        write_file(run / file, (best / file).read_bytes())


# --- what was found ---------------------------------------------------------------------------------------------------


def group_by_learning_rate(runs: Sequence[SweepRun]) -> list[list[SweepRun]]:
    return [[trial for trial in runs if trial.learning_rate == rate] for rate in dict.fromkeys(one.learning_rate
                                                                                               for one in runs)]


def _selection_score(task_config: TaskConfig, sweep_run: SweepRun) -> float:
    assert sweep_run.result is not None
    return selection_score(task_config, sweep_run.result["metrics"]["dev"])


def _rank(task_config: TaskConfig, group: Sequence[SweepRun]) -> tuple[int, float]:
    """A rate is as good as the mean of its restarts; one at which the loss runs away is worse than any other."""
    worths = [_selection_score(task_config, trial) for trial in group if trial.result]
    return len(worths), float(np.mean(worths)) if worths else -math.inf


def summarize_learning_rate(task_config: TaskConfig, group: Sequence[SweepRun]) -> dict[str, Any]:
    """Of the restarts at one rate: mean, spread (the standard deviation of a sample) and best of every metric."""
    summary: dict[str, Any] = {"rate": group[0].learning_rate, "seeds": [trial.seed for trial in group if trial.result]}
    results = [trial.result["metrics"] for trial in group if trial.result]
    for part in HELD_OUT:
        for metric in task_config.metrics:
            values = [metrics[part][metric] for metrics in results if metric in metrics.get(part, {})]
            if values:
                std = float(np.std(values, ddof=1)) if len(values) > 1 else None
                highest = metrics_for(task_config.kind)[metric].higher_is_better
                best = max(values) if highest else min(values)
                summary.setdefault(part, {})[metric] = {"mean": float(np.mean(values)), "spread": std, "best": best}
    return summary


def score_ensemble(run: Path, task_config: TaskConfig, members: Sequence[Path]) -> dict[str, Any]:
    """The metrics of all members as one: their logits averaged. What it says goes beside the examples."""
    learner = build_task_objective(task_config, input_encoder_for(task_config, Tokenizer.load(run / TOKENIZER)))
    examples = {part: read_split(run, part, task_config) for part in HELD_OUT}
    items = {part: learner.encode(some) for part, some in examples.items() if some}
    sums: dict[str, list[np.ndarray]] = {}
    for folder in members:
        model = load(folder / MODEL, choose_device())
        for part, some in items.items():
            answers = model_outputs(model, learner, some)
            before = sums.get(part, [np.zeros_like(answer) for answer in answers])
            sums[part] = [one + other for one, other in zip(before, answers, strict=True)]
    metrics: dict[str, Any] = {"members": len(members)}
    kind = head_task(task_config.kind)
    values = task_config.values
    for part, some in items.items():
        predictions = learner.postprocess(some, [total / len(members) for total in sums[part]], examples[part])
        if part == "dev":
            values = kind.tune(task_config, examples[part], predictions)
        predictions = kind.apply_options(values, predictions)
        write_jsonl(run / f"ensemble-{split_file(part, task_config)}",
                    predictions_to_json(task_config, examples[part], predictions))
        metrics[part] = compute_metrics(task_config, examples[part], predictions)
    return metrics


def _format_metrics(task_config: TaskConfig, metrics: dict[str, object]) -> str:
    return " · ".join(f"{name} {metrics[name]:.4g}" for name in task_config.metrics)


def _format_summary(task_config: TaskConfig, summary: dict[str, Any]) -> str:
    """rate 2e-05 · dev: accuracy 0.9123 ± 0.0045, best 0.9167 (3 seeds)"""
    parts = []
    for part in HELD_OUT:
        if task_config.metrics[0] in summary.get(part, {}):
            told = summary[part][task_config.metrics[0]]
            spread = "" if told["spread"] is None else f" ± {told['spread']:.2g}"
            parts.append(f"{part}: {task_config.metrics[0]} {told['mean']:.4g}{spread}, best {told['best']:.4g}")
    seeds = len(summary["seeds"])
    return " · ".join([f"rate {summary['rate']:g}", *parts, f"{seeds} seed{'s' if seeds != 1 else ''}"])
