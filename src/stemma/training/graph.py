"""The graph of runs: work that is known by all that goes into it, so that it is done once and found again.

The number of a node is the digest of its inputs, among them the numbers of the nodes that it stands on. A lab's cells
lie in folders that are called by their numbers (`Node`); the stages of a pipeline have names, and a ledger says which
number each of them has (`Ledger`). Both are carried out, taken up again after a kill, and kept in the same way.
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

from stemma.files import make_folder, only_here, remove_leftovers
from stemma.json_files import damage
from stemma.stored import read_object, store_object
from stemma.training.run import PLAN

FOUND, FAILED = "scores.json", "failed.json"
LINEAGE, PAST = "lineage.json", "past"
BUSY = "another process works on this cell."


def digest(*facts: object) -> str:
    """The number of what follows from these facts: any JSON."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def read_if_there(file: Path, advice: str) -> dict[str, Any] | None:
    return read_object(file, advice) if file.is_file() else None


@dataclass(frozen=True)
class Node:
    """A piece of work in a folder of its own: whoever holds the lock of the folder works on it. It is done when what it
    found lies there, or why it never will."""

    folder: Path
    again: str  # what to do where something of it is damaged

    @contextmanager
    def held(self) -> Iterator[None]:
        """For this process alone; `files.Busy` where another one has it."""
        make_folder(self.folder)
        with only_here(self.folder, BUSY):
            yield

    def found(self) -> dict[str, Any] | None:
        """What came of it; None: nothing yet."""
        return read_if_there(self.folder / FOUND, self.again)

    def finish(self, found: Mapping[str, object]) -> None:
        store_object(self.folder / FOUND, dict(found), indent=None)

    def failure(self) -> str | None:
        """Why it cannot come to an end, however often it is tried."""
        found = read_if_there(self.folder / FAILED, self.again)
        return None if found is None else str(found.get("why"))

    def fail(self, why: str) -> None:
        store_object(self.folder / FAILED, {"why": why})


def carried_out(run: Path, begin: Callable[[Path], dict[str, Any]],
                go_on: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """What a run reports: begun if it is not there, and otherwise gone on with, finished or not."""
    make_folder(run.parent)
    remove_leftovers(run.parent)
    return go_on(run) if (run / PLAN).is_file() else begin(run)


def remembered(file: Path, name: str | None, number: str, advice: str,
               make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was found once, by the number of what went into it; of several in one file, the one of this name."""
    known = read_if_there(file, advice) or {}
    stored: dict[str, Any] = known if name is None else known.get(name, {})
    if stored.get("hash") != number:
        stored = {"hash": number, **make()}
        store_object(file, stored if name is None else {**known, name: stored})
    return stored


class Ledger:
    """Runs that have names: what is unchanged stays, what changed is put aside, and comes back when it is asked for.

    `lineage.json` says which number each place has. It is written after stale runs have left and before anything new
    comes, so that a kill at any moment leaves no run under a number that is not its own.
    """

    def __init__(self, run: Path, advice: str):
        self.run, self.advice = run, advice

    def numbers(self) -> dict[str, str]:
        """The number of each place, as it was written last."""
        file = self.run / LINEAGE
        if not file.is_file():
            return {}
        with damage(file, self.advice):
            return dict(read_object(file, self.advice)["places"])

    def settle(self, places: Mapping[str, str], lineage: list[dict[str, object]]) -> dict[str, str]:
        """Make room for these numbers; says of each place whether it is kept, changed or new."""
        run, before = self.run, self.numbers()
        told = {}
        for place, number in sorted(before.items(), key=lambda item: -len(item[0])):  # what lies inside leaves first
            if places.get(place) != number and (run / place).exists():
                _move(run / place, self._aside(place, number))
        store_object(run / LINEAGE, {"stages": lineage, "places": dict(places)})
        for place, number in sorted(places.items(), key=lambda item: len(item[0])):
            inside = str(Path(place).parent) in places  # of another run, without which it is nothing
            homeless = inside and not (run / place).parent.exists()
            if not homeless and not (run / place).exists() and (past := self._aside(place, number)).exists():
                _move(past, run / place)
            told[place] = "kept" if (run / place).exists() else "changed" if place in before else "new"
        return told

    def _aside(self, place: str, number: str) -> Path:
        return self.run / PAST / f"{place.replace('/', '.')}-{number[:12]}"


def _move(source: Path, target: Path) -> None:
    make_folder(target.parent)
    remove_leftovers(source.parent)
    if target.exists():
        shutil.rmtree(target)
    source.rename(target)
