"""Time estimate of an experiment: times a few steps of every variant, and one evaluation and fine-tune per network.

Evaluation and fine-tuning of networks with the same shape and vocabulary cost the same, so they are timed once, with a
model that trained for a few steps. Everything runs in a temporary folder; the corpora stay in the cache, where the
experiment reuses them.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemma.atomic_files import atomic_write
from stemma.device import choose_device
from stemma.evaluation.minimal_pairs import read_pairs
from stemma.exchange.load import load
from stemma.json_files import explain_damage, read_object
from stemma.lab.blimp import score_blimp
from stemma.lab.cell_runner import NUM_VALIDATIONS, CellRunner
from stemma.lab.cells import Cell, short_digest
from stemma.lab.downstream_tasks import finetune_on, no_finetuning_reason, num_steps
from stemma.lab.experiment import DownstreamTask, Experiment
from stemma.lab.held_out_likelihood import held_out_scores
from stemma.notes import silenced
from stemma.training.corpus_cache import cache_folder, create_cache_folder
from stemma.training.pretrain import open_run
from stemma.training.run_folder import create_run

if TYPE_CHECKING:
    from stemma.lab.run_experiment import Lab

logger = logging.getLogger(__name__)

WARMUP_STEPS, TIMED_STEPS = 3, 12
FINETUNE_STEPS = 8
ONE_STEP_SECONDS = 1e-9  # a budget after which the loop stops at its first step


def estimate_time(experiment: Experiment, processes: int = 1) -> dict[str, Any]:
    """The cells, the cost of each, and the total time on this machine with this many processes. The estimate is stored,
    so that the report can compare it with the time it took."""
    from stemma.lab.run_experiment import Lab, limit_threads

    limit_threads(processes)
    with tempfile.TemporaryDirectory() as temporary:
        lab = Lab.open(Path(temporary), experiment)
        lab.costs.check(experiment.variants)
        estimator = TimeEstimator(CellRunner(experiment, lab.text_split, lab.costs, False), Path(temporary) / "tries")
        distinct = {cell.digest: cell for cell in lab.cells if cell.seed == experiment.seeds[0]}
        rows = {}
        for index, (digest, cell) in enumerate(distinct.items(), 1):
            logger.info(f"timing {cell.variant.name} ({index} of {len(distinct)})")
            with silenced():  # the messages appear when the cell is trained
                rows[digest] = estimator.estimate_cell(cell)
    seconds = sum(row["seconds"] for row in rows.values()) * len(experiment.seeds) / processes
    create_cache_folder(_estimate_file(lab).parent)
    atomic_write(_estimate_file(lab), json.dumps({"seconds": seconds}))
    variants = [{"variant": cell.variant.name, **rows[cell.digest]} for cell in lab.cells
                if cell.seed == experiment.seeds[0]]
    return {"kind": experiment.kind, "title": experiment.title, "cells": len(rows) * len(experiment.seeds),
            "seeds": list(experiment.seeds), "seconds": seconds, "processes": processes, "variants": variants,
            "budget": {"unit": experiment.allowance.unit, "amount": experiment.allowance.amount},
            "details": dict(experiment.details)}


def stored_estimate(lab: Lab) -> float | None:
    """The estimate in seconds of a dry run with the same cells; None if there was none."""
    file, advice = _estimate_file(lab), "delete it: only the time that was expected is forgotten."
    if not file.is_file():
        return None
    with explain_damage(file, advice):
        return float(read_object(file, advice)["seconds"])


def _estimate_file(lab: Lab) -> Path:
    digest = short_digest(sorted({cell.digest for cell in lab.cells}), [asdict(task) for task in lab.experiment.tasks],
                          *([lab.experiment.blimp] if lab.experiment.blimp is not None else []))
    return cache_folder() / "forecasts" / f"{digest}.json"


class TimeEstimator:
    """Times short runs in a temporary folder; costs that depend on a network's shape alone are timed once per shape."""

    def __init__(self, runner: CellRunner, folder: Path):
        self.runner, self.folder = runner, folder
        self.shapes: dict[str, float] = {}  # seconds of evaluation and fine-tuning, by shape

    def estimate_cell(self, cell: Cell) -> dict[str, Any]:
        """Steps, tokens, FLOPs and seconds of a cell."""
        start_time = time.perf_counter()
        cost, steps = self.runner.costs.step_cost(cell.variant), self.runner.costs.steps(cell.variant.recipe)
        run = self.folder / cell.digest
        create_run(run, *self.runner.run_config(cell), overwrite=True)
        training = open_run(run, False)
        with training.trainer as loop:
            for _ in range(WARMUP_STEPS):
                loop.run_for(ONE_STEP_SECONDS)
            opening_seconds = time.perf_counter() - start_time
            timed = _time_call(lambda: [loop.run_for(ONE_STEP_SECONDS) for _ in range(TIMED_STEPS)])
            step_seconds = timed / TIMED_STEPS
            validation_seconds, save_seconds = _time_call(loop.validate), _time_call(loop.save)
            if steps is None:
                steps = round(60 * self.runner.experiment.allowance.amount / step_seconds)
                training_seconds = 60 * self.runner.experiment.allowance.amount
            else:
                saves = steps // loop.settings.checkpoint_every + 1
                training_seconds = (steps * step_seconds + (NUM_VALIDATIONS + 1) * validation_seconds
                                    + saves * save_seconds)
            closing_seconds = _time_call(lambda: training.finish(loop.summarize()))
        shape = short_digest(cell.variant.recipe.values["network"], training.corpus.fingerprint,
                             cell.variant.recipe.settings.corpus.sequence_length)
        if shape not in self.shapes:
            chunks = self.runner.text_split.eval_chunks
            evaluation_seconds = _time_call(lambda: held_out_scores(load(run, choose_device()), chunks))
            evaluation_seconds += self._estimate_pairs(run)
            tasks = self.runner.experiment.tasks if no_finetuning_reason(cell.variant) is None else ()
            self.shapes[shape] = evaluation_seconds + sum(self._estimate_finetune(run, task) for task in tasks)
        counted = self.runner.costs.counted_tokens(cell.variant.recipe)
        tokens = steps * cost.tokens if counted is None else counted
        return {"steps": steps, "tokens": round(tokens), "flops": steps * cost.flops,
                "parameters": cost.parameters, "training_seconds": training_seconds,
                "seconds": opening_seconds + training_seconds + closing_seconds + self.shapes[shape]}

    def _estimate_pairs(self, run: Path) -> float:
        """Seconds of scoring the minimal pairs, extrapolated from one pair of each phenomenon."""
        folder = self.runner.experiment.blimp
        if folder is None:
            return 0.0
        ratio = len(read_pairs(folder)) / len(read_pairs(folder, limit=1))
        return ratio * _time_call(lambda: score_blimp(load(run, choose_device()), folder, limit=1))

    def _estimate_finetune(self, model: Path, task: DownstreamTask) -> float:
        """Seconds of a fine-tune, extrapolated from its first steps."""
        run = self.folder / "task"
        start_time = time.perf_counter()
        result = finetune_on(task, model, run, steps=FINETUNE_STEPS, overwrite=True)
        elapsed = time.perf_counter() - start_time
        seconds: float = result["seconds"]
        return elapsed + seconds * (num_steps(run, task.epochs) / FINETUNE_STEPS - 1)


def _time_call(function: Callable[[], Any]) -> float:
    start_time = time.perf_counter()
    function()
    return time.perf_counter() - start_time
