"""Runs an experiment: each process takes cells that no other process works on, until all are finished.

There is no server and no scheduler. A process takes a cell by locking its folder; the operating system releases the
lock when the process ends. Finished results are on disk. So `stemma resume` continues a killed lab, and several
processes, or machines that share the folder, work on one lab by running the same command.
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
from stemma.lab.input_files import check_files, with_digests
from stemma.lab.round_robin import train_round_robin
from stemma.lab.task_baselines import score_baselines
from stemma.lab.text_split import TextSplit, split_text
from stemma.lab.variant_costs import VariantCosts
from stemma.progress import format_duration, progress_stage

logger = logging.getLogger(__name__)

PARENT_VARIABLE = "STEMMA_LAB_PARENT"  # process id that started a worker; the worker ends when it is gone
WAIT_SECONDS = 2.0  # between two checks for cells that other processes have finished or released


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
        with lock_folder(folder):  # other processes wait until the text is split
            text_split = split_text(experiment, folder)
        costs = VariantCosts(text_split, experiment.allowance, folder)
        return cls(folder, experiment, text_split, costs, experiment_cells(experiment, text_split, folder))

    def pending_cells(self) -> list[Cell]:
        return [cell for cell in self.distinct_cells() if not cell.is_done(self.experiment)]

    def distinct_cells(self) -> list[Cell]:
        return distinct_cells(self.cells, self.experiment.tasks)


def run_experiment(experiment: Experiment, out: Path, *, processes: int = 1, dry_run: bool = False,
                   overwrite: bool = False, show: bool = False) -> dict[str, Any]:
    """Run an experiment in `out`, reusing finished cells unless `overwrite`; returns its results, or a time estimate if
    `dry_run`."""
    if dry_run:
        from stemma.lab.time_estimate import estimate_time

        return estimate_time(experiment, processes)
    with _resumable(out):
        return work_on(open_lab(experiment, out, overwrite), processes, show)


def open_lab(experiment: Experiment, out: Path, overwrite: bool) -> Lab:
    """Create the lab's folder, or open an existing one."""
    experiment = with_digests(experiment)
    exists = (out / FILE).is_file() and not overwrite
    if exists:
        Experiment.read(out)  # raises for another version and for damaged files
    else:
        exists = not _create_lab(experiment, out, overwrite)
    try:
        lab = _validate_lab(Lab.open(out, experiment))
    except UserError:
        if not exists and not (out / CELLS).exists():
            shutil.rmtree(out)  # the experiment was refused before it started
        raise
    if exists:  # only after the checks, so that a refused experiment changes nothing
        with lock_folder(out):
            experiment.write(out)
    return lab


@accepts_device
def resume_lab(out: Path, *, processes: int = 1, device: str | None = None, show: bool = False) -> dict[str, Any]:
    """Resume an experiment, or join one that other processes work on."""
    with _resumable(out):
        lab = Lab.open(out, Experiment.read(out))
        return work_on(lab if (out / CELLS).exists() else _validate_lab(lab), processes, show)


def _create_lab(experiment: Experiment, out: Path, overwrite: bool) -> bool:
    """Create the lab's folder atomically, before anything slow; False if another process was faster."""
    try:
        with atomic_folder(out, overwrite, checksums=False) as temporary:
            experiment.write(temporary)
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
    """Add the command that resumes the lab to interruptions and full-disk errors."""
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
    """Run the pending cells of a lab and return its results."""
    from stemma.lab.results import write_results

    total = len(lab.distinct_cells())
    pending = lab.pending_cells()
    if pending:
        check_files(lab.experiment)
    if len(pending) < total:
        logger.info(f"{total - len(pending)} of {pluralize(total, 'cell')} are finished already.")
    pretrained = sum(variant.pretrained for variant in lab.experiment.variants)
    round_robin = lab.experiment.allowance.unit == "minutes" and pretrained > 1
    with use_device(requested_device() or lab.experiment.device), \
            _worker_processes(lab.folder, min(processes, len(pending))):
        (_run_round_robin if round_robin else _run_sequentially)(lab, show, total)
    return {**write_results(lab, score_baselines(lab.experiment, lab.folder))}


def _run_sequentially(lab: Lab, show: bool, total: int) -> None:
    runner = CellRunner(lab.experiment, lab.text_split, lab.costs, show)
    start_time, num_pending, parent = time.perf_counter(), len(lab.pending_cells()), str(os.getppid())
    while pending := lab.pending_cells():
        progressed = False
        for cell in pending:
            if os.environ.get(PARENT_VARIABLE, parent) != parent:
                raise Interrupted("the process that started this worker is gone.")
            try:
                with cell.node.lock():
                    if cell.is_done(lab.experiment):  # another process was faster
                        continue
                    num_left = len(lab.pending_cells())
                    num_done = num_pending - num_left  # by all processes
                    seconds_left = (time.perf_counter() - start_time) / num_done * num_left if num_done else 0.0
                    pace = f", about {format_duration(seconds_left)} left" if num_done else ""
                    label = f"cell {total - num_left + 1} of {total}: {cell.variant.name}, seed {cell.seed}"
                    logger.info(f"{label}{pace}")
                    with progress_stage(label, bar="none"):
                        runner.run(cell)
                    progressed = True
            except FolderLockedError:
                continue
        if not progressed:
            time.sleep(WAIT_SECONDS)


def _run_round_robin(lab: Lab, show: bool, total: int) -> None:
    """Train all variants of a seed in turns in one process; another machine may take another seed."""
    runner = CellRunner(lab.experiment, lab.text_split, lab.costs, show)
    while pending := lab.pending_cells():
        progressed = False
        for seed in dict.fromkeys(cell.seed for cell in pending):
            cells = [cell for cell in pending if cell.seed == seed]
            try:
                with _lock_all(cells):
                    logger.info(f"seed {seed}: {pluralize(len(cells), 'cell')} in turns, "
                                f"{lab.experiment.allowance.describe()} each")
                    start_time = time.time()
                    with progress_stage(f"seed {seed}: {pluralize(len(cells), 'cell')} in turns", bar="none"):
                        train_round_robin(runner, [cell for cell in distinct_cells(cells, ())
                                                   if cell.variant.pretrained])
                    for cell in cells:
                        if cell.failure() is None:
                            runner.run(cell, start_time)
                    progressed = True
            except FolderLockedError:
                continue
        if not progressed:
            time.sleep(WAIT_SECONDS)


@contextmanager
def _lock_all(cells: Sequence[Cell]) -> Iterator[None]:
    with ExitStack() as stack:
        for cell in distinct_cells(cells, ()):
            stack.enter_context(cell.node.lock())
        yield


@contextmanager
def _worker_processes(folder: Path, processes: int) -> Iterator[None]:
    """Start further processes, `processes` in total, and divide the cores; they end when no cell is left."""
    if processes <= 1:
        yield
        return
    threads = limit_threads(processes)
    command = [sys.executable, "-m", "stemma", "resume", str(folder), "--json", "--device", requested_device() or AUTO,
               *plugins.command_line_options()]
    with (folder / "workers.log").open("ab") as log:
        workers = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                    env={**os.environ, "OMP_NUM_THREADS": str(threads),
                                         PARENT_VARIABLE: str(os.getpid())})
                   for _ in range(processes - 1)]
        try:
            yield
        finally:
            for process in workers:
                process.terminate()  # no cells are left; or the lab is interrupted, and they save their state
            for process in workers:
                process.wait()


def limit_threads(processes: int) -> int:
    """Limit this process's threads if it is one of several; returns the number of threads."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if processes > 1:
        torch.set_num_threads(max(1, cores // processes))
    return torch.get_num_threads()
