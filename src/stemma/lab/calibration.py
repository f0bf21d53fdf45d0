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

from stemma.device import choose_device
from stemma.exchange.load import load
from stemma.files import write_atomically
from stemma.json_files import damage, read_object
from stemma.lab.cell_work import LOOKS, Work
from stemma.lab.cells import Cell, digest
from stemma.lab.experiment import Experiment, LabTask
from stemma.lab.intrinsic import held_out_score
from stemma.lab.lab_tasks import finetune_on, steps_of
from stemma.notes import silenced
from stemma.training.pretrain import open_training
from stemma.training.run import create_run
from stemma.training.source import cache_folder, make_cache

if TYPE_CHECKING:
    from stemma.lab.work import Lab

logger = logging.getLogger(__name__)

WARM, TIMED = 3, 12  # steps before the clock starts, and steps that it counts
TRIED = 8  # steps of a fine-tune
ONE_STEP = 1e-9  # seconds: a loop that goes on so long takes one step


def foretell(experiment: Experiment, processes: int = 1) -> dict[str, Any]:
    """The cells, what each costs, and how long all of them take on this machine with so many processes. The forecast is
    remembered, so that the report can hold it against what came."""
    from stemma.lab.work import Lab, share_cores

    share_cores(processes)
    with tempfile.TemporaryDirectory() as temporary:
        lab = Lab.open(Path(temporary), experiment)
        lab.costs.check(experiment.variants)
        trial = Trial(Work(experiment, lab.shared, lab.costs, False), Path(temporary) / "tries")
        distinct = {cell.number: cell for cell in lab.cells if cell.seed == experiment.seeds[0]}
        rows = {}
        for place, (number, cell) in enumerate(distinct.items(), 1):
            logger.info(f"trying {cell.variant.name} ({place} of {len(distinct)})")
            with silenced():  # whatever there is to say is said when the cell is trained in earnest
                rows[number] = trial.row(cell)
    seconds = sum(row["seconds"] for row in rows.values()) * len(experiment.seeds) / processes
    make_cache(_memory(lab).parent)
    write_atomically(_memory(lab), json.dumps({"seconds": seconds}))
    listed = [{"variant": cell.variant.name, **rows[cell.number]} for cell in lab.cells
              if cell.seed == experiment.seeds[0]]
    return {"kind": experiment.kind, "title": experiment.title, "cells": len(rows) * len(experiment.seeds),
            "seeds": list(experiment.seeds), "seconds": seconds, "processes": processes, "variants": listed,
            "budget": {"unit": experiment.allowance.unit, "amount": experiment.allowance.amount},
            "details": dict(experiment.details)}


def foretold_before(lab: Lab) -> float | None:
    """What a dry run said of these very cells; None: there was none here."""
    file, advice = _memory(lab), "delete it: only the time that was expected is forgotten."
    if not file.is_file():
        return None
    with damage(file, advice):
        return float(read_object(file, advice)["seconds"])


def _memory(lab: Lab) -> Path:
    number = digest(sorted({cell.number for cell in lab.cells}), [asdict(task) for task in lab.experiment.tasks])
    return cache_folder() / "forecasts" / f"{number}.json"


class Trial:
    """Short trials in a folder of their own; what depends on the shape of a network alone is tried once for each."""

    def __init__(self, work: Work, folder: Path):
        self.work, self.folder = work, folder
        self.shapes: dict[str, float] = {}  # seconds after the training

    def row(self, cell: Cell) -> dict[str, Any]:
        """What one cell of this variant costs."""
        began = time.perf_counter()
        cost, steps = self.work.costs.of(cell.variant), self.work.costs.steps(cell.variant.recipe)
        run = self.folder / cell.number
        create_run(run, *self.work.planned(cell), overwrite=True)
        training = open_training(run, False)
        with training.loop as loop:
            for _ in range(WARM):
                loop.advance(ONE_STEP)
            opened = time.perf_counter() - began
            a_step = _timed(lambda: [loop.advance(ONE_STEP) for _ in range(TIMED)]) / TIMED
            a_look, a_save = _timed(loop.validate), _timed(loop.save)
            if steps is None:
                steps = round(60 * self.work.experiment.allowance.amount / a_step)
                spent = 60 * self.work.experiment.allowance.amount
            else:
                saves = steps // loop.settings.checkpoint_every + 1
                spent = steps * a_step + (LOOKS + 1) * a_look + saves * a_save
            closed = _timed(lambda: training.finish(loop.conclude()))
        shape = digest(cell.variant.recipe.values["network"], training.corpus.fingerprint,
                       cell.variant.recipe.settings.corpus.sequence_length)
        if shape not in self.shapes:
            asked = _timed(lambda: held_out_score(load(run, choose_device()), self.work.shared.stretches))
            self.shapes[shape] = asked + sum(self._task(run, task) for task in self.work.experiment.tasks)
        return {"steps": steps, "tokens": round(steps * cost.tokens), "flops": steps * cost.flops,
                "parameters": cost.parameters, "training_seconds": spent,
                "seconds": opened + spent + closed + self.shapes[shape]}

    def _task(self, model: Path, task: LabTask) -> float:
        """A fine-tune of a few steps, drawn out to its whole length."""
        run = self.folder / "task"
        began = time.perf_counter()
        result = finetune_on(task, model, run, steps=TRIED, overwrite=True)
        took = time.perf_counter() - began
        seconds: float = result["seconds"]
        return took + seconds * (steps_of(run, task.epochs) / TRIED - 1)


def _timed(do: Callable[[], Any]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began
