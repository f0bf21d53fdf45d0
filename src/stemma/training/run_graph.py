"""The graph of runs: work that is known by all that goes into it, so that it is done once and found again.

The number of a node is the digest of its inputs, among them the numbers of the nodes that it stands on. A lab's cells
lie in folders that are called by their numbers (`RunNode`); the stages of a pipeline have names, and a ledger says
which number each of them has (`RunArchive`). Both are carried out, taken up again after a kill, and kept in the same
way.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stemma.atomic_files import lock_folder, make_folder, remove_leftovers
from stemma.checksummed_files import read_verified_object, write_object
from stemma.json_files import explain_damage
from stemma.training.run_folder import CONFIG

RESULT_FILE, FAILURE_FILE = "scores.json", "failed.json"
LINEAGE_FILE, ARCHIVE_FOLDER = "lineage.json", "past"
LOCKED_MESSAGE = "another process works on this cell."


def digest(*facts: object) -> str:
    """The number of what follows from these facts: any JSON."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def read_object_if_exists(file: Path, advice: str) -> dict[str, Any] | None:
    return read_verified_object(file, advice) if file.is_file() else None


@dataclass(frozen=True)
class RunNode:
    """A piece of work in a folder of its own: whoever holds the lock of the folder works on it. It is done when what it
    found lies there, or why it never will."""

    folder: Path
    retry_advice: str  # what to do where something of it is damaged

    @contextmanager
    def lock(self) -> Iterator[None]:
        """For this process alone; `files.Busy` where another one has it."""
        make_folder(self.folder)
        with lock_folder(self.folder, LOCKED_MESSAGE):
            yield

    def result(self) -> dict[str, Any] | None:
        """What came of it; None: nothing yet."""
        return read_object_if_exists(self.folder / RESULT_FILE, self.retry_advice)

    def finish(self, result: Mapping[str, object]) -> None:
        write_object(self.folder / RESULT_FILE, dict(result), indent=None)

    def failure_reason(self) -> str | None:
        """Why it cannot come to an end, however often it is tried."""
        found = read_object_if_exists(self.folder / FAILURE_FILE, self.retry_advice)
        return None if found is None else str(found.get("why"))

    def fail(self, reason: str) -> None:
        write_object(self.folder / FAILURE_FILE, {"why": reason})


def run_or_resume(run: Path, start: Callable[[Path], dict[str, Any]],
                resume: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """What a run reports: begun if it is not there, and otherwise gone on with, finished or not."""
    make_folder(run.parent)
    remove_leftovers(run.parent)
    return resume(run) if (run / CONFIG).is_file() else start(run)


def cached_result(file: Path, name: str | None, digest: str, advice: str,
               compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was found once, by the number of what went into it; of several in one file, the one of this name."""
    known = read_object_if_exists(file, advice) or {}
    stored: dict[str, Any] = known if name is None else known.get(name, {})
    if stored.get("hash") != digest:
        stored = {"hash": digest, **compute()}
        write_object(file, stored if name is None else {**known, name: stored})
    return stored


class RunArchive:
    """Runs that have names: what is unchanged stays, what changed is put aside, and comes back when it is asked for.

    `lineage.json` says which number each place has. It is written after stale runs have left and before anything new
    comes, so that a kill at any moment leaves no run under a number that is not its own.
    """

    def __init__(self, run: Path, advice: str):
        self.run, self.advice = run, advice

    def digests(self) -> dict[str, str]:
        """The number of each place, as it was written last."""
        file = self.run / LINEAGE_FILE
        if not file.is_file():
            return {}
        with explain_damage(file, self.advice):
            return dict(read_verified_object(file, self.advice)["places"])

    def reconcile(self, digests: Mapping[str, str], lineage: list[dict[str, object]]) -> dict[str, str]:
        """Make room for these numbers; says of each place whether it is kept, changed or new."""
        run, before = self.run, self.digests()
        told = {}
        for place, number in sorted(before.items(), key=lambda item: -len(item[0])):  # what lies inside leaves first
            if digests.get(place) != number and (run / place).exists():
                _move(run / place, self._archive_path(place, number))
        write_object(run / LINEAGE_FILE, {"stages": lineage, "places": dict(digests)})
        for place, number in sorted(digests.items(), key=lambda item: len(item[0])):
            inside = str(Path(place).parent) in digests  # of another run, without which it is nothing
            homeless = inside and not (run / place).parent.exists()
            if not homeless and not (run / place).exists() and (past := self._archive_path(place, number)).exists():
                _move(past, run / place)
            told[place] = "kept" if (run / place).exists() else "changed" if place in before else "new"
        return told

    def _archive_path(self, name: str, digest: str) -> Path:
        return self.run / ARCHIVE_FOLDER / f"{name.replace('/', '.')}-{digest[:12]}"


def _move(source: Path, target: Path) -> None:
    make_folder(target.parent)
    remove_leftovers(source.parent)
    if target.exists():
        shutil.rmtree(target)
    source.rename(target)
