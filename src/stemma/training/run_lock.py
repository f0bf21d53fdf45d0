"""Around the work on a run, whatever it is: one process at a time, and a run that is stopped says how to go on."""

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
    """While a run is worked on."""
    try:
        with lock_folder(run, f"another process is training {run}; wait for it, or stop it first."):
            remove_leftovers(run)
            yield
    except KeyboardInterrupt:  # between steps; during one, the loop ends it and saves
        raise Interrupted(f"stopped; `stemma resume {run}` goes on from its last checkpoint.") from None
    except DiskFullError as error:
        raise error.with_advice(f"`stemma resume {run}` goes on from its last checkpoint") from error


@contextmanager
def lock_new_run(run: Path) -> Iterator[None]:
    """The same for a run that stands on disk and has not been started. If it fails before anything is trained, nothing
    is left of it."""
    try:
        with lock_run(run):
            yield
    except Interrupted:
        raise
    except Exception as error:
        if any(run.rglob("step-*")) or any(run.rglob(RESULT)):
            raise
        shutil.rmtree(run)  # nothing was trained, here or in a run below: leave nothing behind
        if isinstance(error, DiskFullError):  # so there is nothing to go on with either
            raise DiskFullError(error.problem) from error
        raise


def finished_result(run: Path) -> dict[str, Any] | None:
    """What a run reported when it ended, which is told; None while it has not."""
    read_run(run)
    found = read_result(run)
    if found is not None:
        logger.info(f"{run} is finished; nothing to do.")
    return found
