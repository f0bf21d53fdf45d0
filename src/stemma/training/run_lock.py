"""Lock a run: one process at a time; an interrupted run says how to resume it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stemma.atomic_files import DiskFullError, lock_folder, remove_leftovers
from stemma.errors import Interrupted
from stemma.training.run_folder import RESULT, read_result, read_run

logger = logging.getLogger(__name__)


@contextmanager
def lock_run(run: Path) -> Iterator[None]:
    """Hold the lock of a run."""
    try:
        with lock_folder(run, f"another process is training {run}; wait for it, or stop it first."):
            remove_leftovers(run)
            yield
    except KeyboardInterrupt:  # between steps; during a step the trainer finishes it and saves
        raise Interrupted(f"stopped; `stemma resume {run}` goes on from its last checkpoint.") from None
    except DiskFullError as error:
        raise error.with_advice(f"`stemma resume {run}` goes on from its last checkpoint") from error


@contextmanager
def lock_new_run(run: Path) -> Iterator[None]:
    """Hold the lock of a new run. If it fails before anything is trained, its folder is deleted."""
    try:
        with lock_run(run):
            yield
    except Interrupted:
        raise
    except Exception as error:
        if any(run.rglob("step-*")) or any(run.rglob(RESULT)):
            raise
        shutil.rmtree(run)  # nothing was trained, here or in a nested run
        if isinstance(error, DiskFullError):  # nothing is left to resume
            raise DiskFullError(error.problem) from error
        raise


def finished_result(run: Path) -> dict[str, Any] | None:
    """The result of a finished run, with a note to the user; None if it is not finished."""
    read_run(run)
    result = read_result(run)
    if result is not None:
        logger.info(f"{run} is finished; nothing to do.")
    return result
