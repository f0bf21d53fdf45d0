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
from stemma.device import AUTO, asked_device, device_asked, takes_device
from stemma.errors import Interrupted, UserError, counted
from stemma.files import Busy, NoSpace, folder_atomically, only_here
from stemma.lab.cell_work import Work
from stemma.lab.cells import CELLS, Cell, cells_of, distinct
from stemma.lab.costs import Costs
from stemma.lab.experiment import FILE, Experiment
from stemma.lab.shared_text import SharedText, share_text
from stemma.lab.slices import train_in_turns
from stemma.progress import clock, stage

logger = logging.getLogger(__name__)

PARENT = "STEMMA_LAB_PARENT"  # tells a process who started it to help; without that one, it ends
WAIT = 2.0  # seconds between looks, while others finish their cells


@dataclass(frozen=True)
class Lab:
    """An experiment in its folder."""

    folder: Path
    experiment: Experiment
    shared: SharedText
    costs: Costs
    cells: list[Cell]

    @classmethod
    def open(cls, folder: Path, experiment: Experiment) -> Lab:
        with only_here(folder):  # whoever comes second waits until the text is parted
            shared = share_text(experiment, folder)
        costs = Costs(shared, experiment.allowance, folder)
        return cls(folder, experiment, shared, costs, cells_of(experiment, shared, folder))

    def open_cells(self) -> list[Cell]:
        return [cell for cell in self.distinct() if not cell.is_done(self.experiment)]

    def distinct(self) -> list[Cell]:
        return distinct(self.cells, self.experiment.tasks)


def run_experiment(experiment: Experiment, out: Path, *, processes: int = 1, dry_run: bool = False,
                   overwrite: bool = False, show: bool = False) -> dict[str, Any]:
    """Carry an experiment out in `out`, with what is there already (nothing is, if it is to `overwrite`); returns its
    results, or how long it would take."""
    if dry_run:
        from stemma.lab.calibration import foretell

        return foretell(experiment, processes)
    with _resumable(out):
        return work_on(open_lab(experiment, out, overwrite), processes, show)


def open_lab(experiment: Experiment, out: Path, overwrite: bool) -> Lab:
    """The experiment in its folder, with what is there already, ready to be worked on."""
    known = (out / FILE).is_file() and not overwrite
    if known:
        Experiment.read(out)  # refuses another version, and damage
    else:
        known = not _make(experiment, out, overwrite)
    try:
        lab = _checked(Lab.open(out, experiment))
    except UserError:
        if not known and not (out / CELLS).exists():
            shutil.rmtree(out)  # it was refused before it began
        raise
    if known:  # only now: what was refused changes nothing
        with only_here(out):
            experiment.write(out)
    return lab


@takes_device
def resume_lab(out: Path, *, processes: int = 1, device: str | None = None, show: bool = False) -> dict[str, Any]:
    """Go on with an experiment, or help with one that others work on."""
    with _resumable(out):
        lab = Lab.open(out, Experiment.read(out))
        return work_on(lab if (out / CELLS).exists() else _checked(lab), processes, show)


def _make(experiment: Experiment, out: Path, overwrite: bool) -> bool:
    """The lab's folder in one stroke, before anything slow; whether it was made here: somebody may have been faster."""
    try:
        with folder_atomically(out, overwrite, checksums=False) as place:
            experiment.write(place)
    except UserError:
        if overwrite or not (out / FILE).is_file():
            raise
        return False
    return True


def _checked(lab: Lab) -> Lab:
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
    except NoSpace as error:
        if not (out / FILE).is_file():
            raise
        raise error.go_on(f"`stemma resume {out}` goes on from there") from error


def work_on(lab: Lab, processes: int, show: bool) -> dict[str, Any]:
    """Whatever is left to do in a lab, and its results."""
    from stemma.lab.results import conclude

    total = len(lab.distinct())
    waiting = lab.open_cells()
    if len(waiting) < total:
        logger.info(f"{total - len(waiting)} of {counted(total, 'cell')} are there already.")
    in_turns = lab.experiment.allowance.unit == "minutes" and sum(one.pretrained for one in lab.experiment.variants) > 1
    with device_asked(asked_device() or lab.experiment.device), _others(lab.folder, min(processes, len(waiting))):
        (_in_turns if in_turns else _one_by_one)(lab, show, total)
    return {**conclude(lab)}


def _one_by_one(lab: Lab, show: bool, total: int) -> None:
    work = Work(lab.experiment, lab.shared, lab.costs, show)
    began, before, parent = time.perf_counter(), len(lab.open_cells()), str(os.getppid())
    while waiting := lab.open_cells():
        worked = False
        for cell in waiting:
            if os.environ.get(PARENT, parent) != parent:
                raise Interrupted("the process that asked for help is gone.")
            try:
                with cell.node.held():
                    if cell.is_done(lab.experiment):  # by somebody else, meanwhile
                        continue
                    left = len(lab.open_cells())
                    done = before - left  # by all who work here
                    pace = f", about {clock((time.perf_counter() - began) / done * left)} left" if done else ""
                    named = f"cell {total - left + 1} of {total}: {cell.variant.name}, seed {cell.seed}"
                    logger.info(f"{named}{pace}")
                    with stage(named, bar="none"):
                        work.carry_out(cell)
                    worked = True
            except Busy:
                continue
        if not worked:
            time.sleep(WAIT)


def _in_turns(lab: Lab, show: bool, total: int) -> None:
    """All variants of a seed share one process and its clock; another machine may take another seed."""
    work = Work(lab.experiment, lab.shared, lab.costs, show)
    while waiting := lab.open_cells():
        worked = False
        for seed in dict.fromkeys(cell.seed for cell in waiting):
            cells = [cell for cell in waiting if cell.seed == seed]
            try:
                with _all_of(cells):
                    logger.info(f"seed {seed}: {counted(len(cells), 'cell')} in turns, "
                                f"{lab.experiment.allowance.describe()} each")
                    began = time.time()
                    with stage(f"seed {seed}: {counted(len(cells), 'cell')} in turns", bar="none"):
                        train_in_turns(work, [cell for cell in distinct(cells, ()) if cell.variant.pretrained])
                    for cell in cells:
                        if cell.failure() is None:
                            work.carry_out(cell, began)
                    worked = True
            except Busy:
                continue
        if not worked:
            time.sleep(WAIT)


@contextmanager
def _all_of(cells: Sequence[Cell]) -> Iterator[None]:
    with ExitStack() as held:
        for cell in distinct(cells, ()):
            held.enter_context(cell.node.held())
        yield


@contextmanager
def _others(folder: Path, processes: int) -> Iterator[None]:
    """So many processes in all, each with its share of the cores; the others end when there is nothing left to do."""
    if processes <= 1:
        yield
        return
    share = share_cores(processes)
    command = [sys.executable, "-m", "stemma", "resume", str(folder), "--json", "--device", asked_device() or AUTO,
               *plugins.options()]
    with (folder / "workers.log").open("ab") as log:
        started = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                    env={**os.environ, "OMP_NUM_THREADS": str(share), PARENT: str(os.getpid())})
                   for _ in range(processes - 1)]
        try:
            yield
        finally:
            for process in started:
                process.terminate()  # a finished lab has no work left for them; an interrupted one is saved
            for process in started:
                process.wait()


def share_cores(processes: int) -> int:
    """The threads of this process, where it is one of several; alone, it has all."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if processes > 1:
        torch.set_num_threads(max(1, cores // processes))
    return torch.get_num_threads()
