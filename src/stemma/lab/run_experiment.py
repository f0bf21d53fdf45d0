"""Running an experiment: whoever opens its folder takes cells that nobody works on, until none is left.

There is no server and no list of who does what. A cell is held by a lock on its folder, which the system lets go of
when the process ends, however it ends; what is complete lies on disk. So a killed lab is taken up by `stemma resume`,
and several processes, or machines that share the folder, work on one lab by starting the same command.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stemma import plugins
from stemma.atomic_files import DiskFullError, FolderLockedError, atomic_folder, lock_folder
from stemma.device import AUTO, accepts_device, requested_device, use_device
from stemma.errors import Interrupted, UserError, pluralize
from stemma.lab.cell_runner import CellRunner
from stemma.lab.cells import CELLS, Cell, distinct_cells, experiment_cells
from stemma.lab.experiment import FILE, Experiment
from stemma.lab.round_robin import train_round_robin
from stemma.lab.text_split import TextSplit, split_text
from stemma.lab.variant_costs import VariantCosts
from stemma.progress import format_duration, progress_stage

logger = logging.getLogger(__name__)

PARENT_VARIABLE = "STEMMA_LAB_PARENT"  # tells a process who started it to help; without that one, it ends
WAIT_SECONDS = 2.0  # seconds between looks, while others finish their cells


@dataclass(frozen=True)
class Lab:
    """An experiment in its folder."""

    folder: Path
    experiment: Experiment
    text_split: TextSplit
    costs: VariantCosts
    cells: list[Cell]

    @classmethod
    def open(cls, folder: Path, experiment: Experiment) -> Lab:
        with lock_folder(folder):  # whoever comes second waits until the text is parted
            shared = split_text(experiment, folder)
        costs = VariantCosts(shared, experiment.allowance, folder)
        return cls(folder, experiment, shared, costs, experiment_cells(experiment, shared, folder))

    def pending_cells(self) -> list[Cell]:
        return [cell for cell in self.distinct_cells() if not cell.is_done(self.experiment)]

    def distinct_cells(self) -> list[Cell]:
        return distinct_cells(self.cells, self.experiment.tasks)


def run_experiment(experiment: Experiment, out: Path, *, processes: int = 1, dry_run: bool = False,
                   overwrite: bool = False, show: bool = False) -> dict[str, Any]:
    """Carry an experiment out in `out`, with what is there already (nothing is, if it is to `overwrite`); returns its
    results, or how long it would take."""
    if dry_run:
        from stemma.lab.time_estimate import estimate_time

        return estimate_time(experiment, processes)
    with _resumable(out):
        return work_on(open_lab(experiment, out, overwrite), processes, show)


def open_lab(experiment: Experiment, out: Path, overwrite: bool) -> Lab:
    """The experiment in its folder, with what is there already, ready to be worked on."""
    known = (out / FILE).is_file() and not overwrite
    if known:
        Experiment.read(out)  # refuses another version, and damage
    else:
        known = not _create_lab(experiment, out, overwrite)
    try:
        lab = _validate_lab(Lab.open(out, experiment))
    except UserError:
        if not known and not (out / CELLS).exists():
            shutil.rmtree(out)  # it was refused before it began
        raise
    if known:  # only now: what was refused changes nothing
        with lock_folder(out):
            experiment.write(out)
    return lab


@accepts_device
def resume_lab(out: Path, *, processes: int = 1, device: str | None = None, show: bool = False) -> dict[str, Any]:
    """Go on with an experiment, or help with one that others work on."""
    with _resumable(out):
        lab = Lab.open(out, Experiment.read(out))
        return work_on(lab if (out / CELLS).exists() else _validate_lab(lab), processes, show)


def _create_lab(experiment: Experiment, out: Path, overwrite: bool) -> bool:
    """The lab's folder in one stroke, before anything slow; whether it was made here: somebody may have been faster."""
    try:
        with atomic_folder(out, overwrite, checksums=False) as place:
            experiment.write(place)
    except UserError:
        if overwrite or not (out / FILE).is_file():
            raise
        return False
    return True


def _validate_lab(lab: Lab) -> Lab:
    lab.costs.check(lab.experiment.variants)
    return lab


@contextmanager
def _resumable(out: Path) -> Iterator[None]:
    """Whatever stops a lab whose folder stands, it can go on."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as error:
        if not (out / FILE).is_file():
            raise
        raise Interrupted(f"stopped; `stemma resume {out}` goes on from there.") from error
    except DiskFullError as error:
        if not (out / FILE).is_file():
            raise
        raise error.with_advice(f"`stemma resume {out}` goes on from there") from error


def work_on(lab: Lab, processes: int, show: bool) -> dict[str, Any]:
    """Whatever is left to do in a lab, and its results."""
    from stemma.lab.results import write_results

    total = len(lab.distinct_cells())
    waiting = lab.pending_cells()
    if len(waiting) < total:
        logger.info(f"{total - len(waiting)} of {pluralize(total, 'cell')} are there already.")
    in_turns = lab.experiment.allowance.unit == "minutes" and sum(one.pretrained for one in lab.experiment.variants) > 1
    with use_device(requested_device() or lab.experiment.device), _worker_processes(lab.folder,
                                                                                    min(processes, len(waiting))):
        (_run_round_robin if in_turns else _run_sequentially)(lab, show, total)
    return {**write_results(lab)}


def _run_sequentially(lab: Lab, show: bool, total: int) -> None:
    work = CellRunner(lab.experiment, lab.text_split, lab.costs, show)
    began, before, parent = time.perf_counter(), len(lab.pending_cells()), str(os.getppid())
    while waiting := lab.pending_cells():
        worked = False
        for cell in waiting:
            if os.environ.get(PARENT_VARIABLE, parent) != parent:
                raise Interrupted("the process that asked for help is gone.")
            try:
                with cell.node.lock():
                    if cell.is_done(lab.experiment):  # by somebody else, meanwhile
                        continue
                    left = len(lab.pending_cells())
                    done = before - left  # by all processes
                    seconds_left = (time.perf_counter() - began) / done * left if done else 0.0
                    pace = f", about {format_duration(seconds_left)} left" if done else ""
                    label = f"cell {total - left + 1} of {total}: {cell.variant.name}, seed {cell.seed}"
                    logger.info(f"{label}{pace}")
                    with progress_stage(label, bar="none"):
                        work.run(cell)
                    worked = True
            except FolderLockedError:
                continue
        if not worked:
            time.sleep(WAIT_SECONDS)


def _run_round_robin(lab: Lab, show: bool, total: int) -> None:
    """All variants of a seed share one process and its clock; another machine may take another seed."""
    work = CellRunner(lab.experiment, lab.text_split, lab.costs, show)
    while waiting := lab.pending_cells():
        worked = False
        for seed in dict.fromkeys(cell.seed for cell in waiting):
            cells = [cell for cell in waiting if cell.seed == seed]
            try:
                with _lock_all(cells):
                    logger.info(f"seed {seed}: {pluralize(len(cells), 'cell')} in turns, "
                                f"{lab.experiment.allowance.describe()} each")
                    began = time.time()
                    with progress_stage(f"seed {seed}: {pluralize(len(cells), 'cell')} in turns", bar="none"):
                        train_round_robin(work, [cell for cell in distinct_cells(cells, ()) if cell.variant.pretrained])
                    for cell in cells:
                        if cell.failure() is None:
                            work.run(cell, began)
                    worked = True
            except FolderLockedError:
                continue
        if not worked:
            time.sleep(WAIT_SECONDS)


@contextmanager
def _lock_all(cells: Sequence[Cell]) -> Iterator[None]:
    with ExitStack() as held:
        for cell in distinct_cells(cells, ()):
            held.enter_context(cell.node.lock())
        yield


@contextmanager
def _worker_processes(folder: Path, processes: int) -> Iterator[None]:
    """So many processes in all, each with its share of the cores; the others end when there is nothing left to do."""
    if processes <= 1:
        yield
        return
    share = limit_threads(processes)
    command = [sys.executable, "-m", "stemma", "resume", str(folder), "--json", "--device", requested_device() or AUTO,
               *plugins.command_line_options()]
    with (folder / "workers.log").open("ab") as log:
        started = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                    env={**os.environ, "OMP_NUM_THREADS": str(share),
                                         PARENT_VARIABLE: str(os.getpid())})
                   for _ in range(processes - 1)]
        try:
            yield
        finally:
            for process in started:
                process.terminate()  # a finished lab has no work left for them; an interrupted one is saved
            for process in started:
                process.wait()


def limit_threads(processes: int) -> int:
    """The threads of this process, where it is one of several; alone, it has all."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if processes > 1:
        torch.set_num_threads(max(1, cores // processes))
    return torch.get_num_threads()
