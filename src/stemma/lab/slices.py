"""Equal time on an unequal machine: the variants of one seed take turns, a few seconds each, until all have had theirs.

Whatever else the machine does meanwhile then hurts all alike. Each stands in memory beside the others; each is an
ordinary run with its own checkpoints, so that a lab that was killed goes on with the time that each has left.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from stemma.errors import Interrupted
from stemma.files import only_here, remove_leftovers
from stemma.lab.cell_work import Work
from stemma.lab.cells import Cell
from stemma.notes import each_once
from stemma.training.loop import Diverged
from stemma.training.pretrain import Training, open_training
from stemma.training.run import PLAN, create_run

TURNS = 40  # that each variant has, at least
LONGEST = 10.0  # seconds of a turn


def train_in_turns(work: Work, cells: Sequence[Cell]) -> None:
    """Pre-train all of these, side by side."""
    seconds = min(LONGEST, 60 * work.experiment.allowance.amount / TURNS)
    with each_once(work.told), ExitStack() as held:
        open_runs: list[tuple[Cell, Training]] = []
        for cell in cells:
            if cell.failure() is not None or cell.result() is not None:
                continue
            if not (cell.run / PLAN).is_file():
                create_run(cell.run, *work.planned(cell), overwrite=False)
            held.enter_context(only_here(cell.run, f"another process is training {cell.run}; wait for it."))
            remove_leftovers(cell.run)
            training = open_training(cell.run, False)
            held.enter_context(training.loop)
            open_runs.append((cell, training))
        while open_runs:
            for cell, training in list(open_runs):
                try:
                    if training.loop.advance(seconds):
                        training.finish(training.loop.conclude())
                        open_runs.remove((cell, training))
                except Diverged as error:
                    cell.node.fail(error.message)
                    open_runs.remove((cell, training))
                except Interrupted:
                    for _, other in open_runs:
                        other.loop.save()
                    raise
