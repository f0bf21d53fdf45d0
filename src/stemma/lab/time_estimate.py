"""How long it will take: a few steps of every variant, one measuring and one fine-tune of every kind of network.

Networks of one shape on one vocabulary cost the same to ask and to fine-tune, so that is tried once for each shape, by
a model that has learnt for a few steps only. Everything happens in a folder that is thrown away; the corpora stay in
the cache, where the experiment itself finds them.
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
from stemma.exchange.load import load
from stemma.json_files import explain_damage, read_object
from stemma.lab.cell_runner import NUM_VALIDATIONS, CellRunner
from stemma.lab.cells import Cell, short_digest
from stemma.lab.downstream_tasks import finetune_on, num_steps
from stemma.lab.experiment import DownstreamTask, Experiment
from stemma.lab.held_out_likelihood import held_out_scores
from stemma.notes import silenced
from stemma.training.corpus_cache import cache_folder, create_cache_folder
from stemma.training.pretrain import open_run
from stemma.training.run_folder import create_run

if TYPE_CHECKING:
    from stemma.lab.run_experiment import Lab

logger = logging.getLogger(__name__)

WARMUP_STEPS, TIMED_STEPS = 3, 12  # steps before the clock starts, and steps that it counts
FINETUNE_STEPS = 8  # steps of a fine-tune
ONE_STEP_EPOCHS = 1e-9  # seconds: a loop that goes on so long takes one step


def estimate_time(experiment: Experiment, processes: int = 1) -> dict[str, Any]:
    """The cells, what each costs, and how long all of them take on this machine with so many processes. The forecast is
    remembered, so that the report can hold it against what came."""
    from stemma.lab.run_experiment import Lab, limit_threads

    limit_threads(processes)
    with tempfile.TemporaryDirectory() as temporary:
        lab = Lab.open(Path(temporary), experiment)
        lab.costs.check(experiment.variants)
        trial = TimeEstimator(CellRunner(experiment, lab.text_split, lab.costs, False), Path(temporary) / "tries")
        distinct = {cell.digest: cell for cell in lab.cells if cell.seed == experiment.seeds[0]}
        rows = {}
        for place, (number, cell) in enumerate(distinct.items(), 1):
            logger.info(f"trying {cell.variant.name} ({place} of {len(distinct)})")
            with silenced():  # whatever there is to say is said when the cell is trained in earnest
                rows[number] = trial.estimate_cell(cell)
    seconds = sum(row["seconds"] for row in rows.values()) * len(experiment.seeds) / processes
    create_cache_folder(_estimate_file(lab).parent)
    atomic_write(_estimate_file(lab), json.dumps({"seconds": seconds}))
    listed = [{"variant": cell.variant.name, **rows[cell.digest]} for cell in lab.cells
              if cell.seed == experiment.seeds[0]]
    return {"kind": experiment.kind, "title": experiment.title, "cells": len(rows) * len(experiment.seeds),
            "seeds": list(experiment.seeds), "seconds": seconds, "processes": processes, "variants": listed,
            "budget": {"unit": experiment.allowance.unit, "amount": experiment.allowance.amount},
            "details": dict(experiment.details)}


def stored_estimate(lab: Lab) -> float | None:
    """What a dry run said of these very cells; None: there was none here."""
    file, advice = _estimate_file(lab), "delete it: only the time that was expected is forgotten."
    if not file.is_file():
        return None
    with explain_damage(file, advice):
        return float(read_object(file, advice)["seconds"])


def _estimate_file(lab: Lab) -> Path:
    number = short_digest(sorted({cell.digest for cell in lab.cells}), [asdict(task) for task in lab.experiment.tasks])
    return cache_folder() / "forecasts" / f"{number}.json"


class TimeEstimator:
    """Short trials in a folder of their own; what depends on the shape of a network alone is tried once for each."""

    def __init__(self, runner: CellRunner, folder: Path):
        self.runner, self.folder = runner, folder
        self.shapes: dict[str, float] = {}  # seconds after the training

    def estimate_cell(self, cell: Cell) -> dict[str, Any]:
        """What one cell of this variant costs."""
        began = time.perf_counter()
        cost, steps = self.runner.costs.step_cost(cell.variant), self.runner.costs.steps(cell.variant.recipe)
        run = self.folder / cell.digest
        create_run(run, *self.runner.run_config(cell), overwrite=True)
        training = open_run(run, False)
        with training.trainer as loop:
            for _ in range(WARMUP_STEPS):
                loop.run_for(ONE_STEP_EPOCHS)
            opened = time.perf_counter() - began
            a_step = _time_call(lambda: [loop.run_for(ONE_STEP_EPOCHS) for _ in range(TIMED_STEPS)]) / TIMED_STEPS
            a_look, a_save = _time_call(loop.validate), _time_call(loop.save)
            if steps is None:
                steps = round(60 * self.runner.experiment.allowance.amount / a_step)
                spent = 60 * self.runner.experiment.allowance.amount
            else:
                saves = steps // loop.settings.checkpoint_every + 1
                spent = steps * a_step + (NUM_VALIDATIONS + 1) * a_look + saves * a_save
            closed = _time_call(lambda: training.finish(loop.summarize()))
        shape = short_digest(cell.variant.recipe.values["network"], training.corpus.fingerprint,
                       cell.variant.recipe.settings.corpus.sequence_length)
        if shape not in self.shapes:
            asked = _time_call(lambda: held_out_scores(load(run, choose_device()), self.runner.shared.eval_chunks))
            self.shapes[shape] = asked + sum(self._estimate_finetune(run,
                                                                     task) for task in self.runner.experiment.tasks)
        return {"steps": steps, "tokens": round(steps * cost.tokens), "flops": steps * cost.flops,
                "parameters": cost.parameters, "training_seconds": spent,
                "seconds": opened + spent + closed + self.shapes[shape]}

    def _estimate_finetune(self, model: Path, task: DownstreamTask) -> float:
        """A fine-tune of a few steps, drawn out to its whole length."""
        run = self.folder / "task"
        began = time.perf_counter()
        result = finetune_on(task, model, run, steps=FINETUNE_STEPS, overwrite=True)
        took = time.perf_counter() - began
        seconds: float = result["seconds"]
        return took + seconds * (num_steps(run, task.epochs) / FINETUNE_STEPS - 1)


def _time_call(do: Callable[[], Any]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began
