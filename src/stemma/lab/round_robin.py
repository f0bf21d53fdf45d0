"""Equal training time on a shared machine: the variants of one seed train in turns of a few seconds each.

Other load on the machine then slows all variants equally. All of them are in memory at once. Each is an ordinary run
with its own checkpoints, so a lab that was killed resumes with the time that each variant has left.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from stemma.atomic_files import lock_folder, remove_leftovers
from stemma.errors import Interrupted
from stemma.lab.cell_runner import CellRunner
from stemma.lab.cells import Cell
from stemma.notes import each_once
from stemma.training.pretrain import OpenRun, open_run
from stemma.training.run_folder import CONFIG, create_run
from stemma.training.trainer import TrainingDivergedError

MIN_SLICES = 40  # turns of each variant
MAX_SLICE_SECONDS = 10.0


def train_round_robin(runner: CellRunner, cells: Sequence[Cell]) -> None:
    """Pre-train these cells in turns."""
    seconds = min(MAX_SLICE_SECONDS, 60 * runner.experiment.allowance.amount / MIN_SLICES)
    with each_once(runner.logged), ExitStack() as stack:
        open_runs: list[tuple[Cell, OpenRun]] = []
        for cell in cells:
            if cell.failure() is not None or cell.result() is not None:
                continue
            if not (cell.run / CONFIG).is_file():
                create_run(cell.run, *runner.run_config(cell), overwrite=False)
            stack.enter_context(lock_folder(cell.run, f"another process is training {cell.run}; wait for it."))
            remove_leftovers(cell.run)
            training = open_run(cell.run, False)
            stack.enter_context(training.trainer)
            open_runs.append((cell, training))
        while open_runs:
            for cell, training in list(open_runs):
                try:
                    if training.trainer.run_for(seconds):
                        training.finish(training.trainer.summarize())
                        open_runs.remove((cell, training))
                except TrainingDivergedError as error:
                    cell.node.fail(error.message)
                    open_runs.remove((cell, training))
                except Interrupted:
                    for _, other in open_runs:
                        other.trainer.save()
                    raise
