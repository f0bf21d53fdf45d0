"""The graph of runs: work keyed by the digest of its inputs, so that it is done once and then reused.

The digest of a node covers its inputs, including the digests of the nodes it depends on. The cells of a lab are folders
named by digest (`RunNode`); the stages of a pipeline have names, and `lineage.json` records their digests
(`RunArchive`).
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


def digest(*values: object) -> str:
    """SHA-256 of these values (any JSON)."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def read_object_if_exists(file: Path, advice: str) -> dict[str, Any] | None:
    return read_verified_object(file, advice) if file.is_file() else None


@dataclass(frozen=True)
class RunNode:
    """A unit of work in its own folder, which is locked by the process that works on it. It is done when the folder
    holds its result, or the reason of its failure."""

    folder: Path
    retry_advice: str  # what to do if a file is damaged

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the folder; fails if another process has it."""
        make_folder(self.folder)
        with lock_folder(self.folder, LOCKED_MESSAGE):
            yield

    def result(self) -> dict[str, Any] | None:
        """The result; None if there is none yet."""
        return read_object_if_exists(self.folder / RESULT_FILE, self.retry_advice)

    def finish(self, result: Mapping[str, object]) -> None:
        make_folder(self.folder)
        write_object(self.folder / RESULT_FILE, dict(result), indent=None)

    def failure_reason(self) -> str | None:
        """Why it fails permanently; None if it does not."""
        failure = read_object_if_exists(self.folder / FAILURE_FILE, self.retry_advice)
        return None if failure is None else str(failure.get("why"))

    def fail(self, reason: str) -> None:
        write_object(self.folder / FAILURE_FILE, {"why": reason})


def run_or_resume(run: Path, start: Callable[[Path], dict[str, Any]],
                  resume: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The result of a run: starts it if its folder does not exist, otherwise resumes it."""
    make_folder(run.parent)
    remove_leftovers(run.parent)
    return resume(run) if (run / CONFIG).is_file() else start(run)


def cached_result(file: Path, name: str | None, digest: str, advice: str,
                  compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A result cached by the digest of its inputs; with `name`, one of several results in the file."""
    content = read_object_if_exists(file, advice) or {}
    stored: dict[str, Any] = content if name is None else content.get(name, {})
    if stored.get("hash") != digest:
        stored = {"hash": digest, **compute()}
        write_object(file, stored if name is None else {**content, name: stored})
    return stored


class RunArchive:
    """Named runs: unchanged ones stay, changed ones are moved to an archive, from which they can return.

    `lineage.json` records the digest of each name. It is written after stale runs are archived and before new ones
    start, so that a kill at any time leaves no run under a wrong digest.
    """

    def __init__(self, run: Path, advice: str):
        self.run, self.advice = run, advice

    def digests(self) -> dict[str, str]:
        """The recorded digest of each name."""
        file = self.run / LINEAGE_FILE
        if not file.is_file():
            return {}
        with explain_damage(file, self.advice):
            return dict(read_verified_object(file, self.advice)["places"])

    def reconcile(self, digests: Mapping[str, str], lineage: list[dict[str, object]]) -> dict[str, str]:
        """Archive or restore runs to match these digests; returns for each name whether it is kept, changed or new."""
        run, recorded = self.run, self.digests()
        status = {}
        for name, digest in sorted(recorded.items(), key=lambda item: -len(item[0])):  # nested runs first
            if digests.get(name) != digest and (run / name).exists():
                _move(run / name, self._archive_path(name, digest))
        write_object(run / LINEAGE_FILE, {"stages": lineage, "places": dict(digests)})
        for name, digest in sorted(digests.items(), key=lambda item: len(item[0])):
            nested = str(Path(name).parent) in digests  # inside another run
            no_parent = nested and not (run / name).parent.exists()
            if not no_parent and not (run / name).exists() and (archived := self._archive_path(name, digest)).exists():
                _move(archived, run / name)
            status[name] = "kept" if (run / name).exists() else "changed" if name in recorded else "new"
        return status

    def _archive_path(self, name: str, digest: str) -> Path:
        return self.run / ARCHIVE_FOLDER / f"{name.replace('/', '.')}-{digest[:12]}"


def _move(source: Path, target: Path) -> None:
    make_folder(target.parent)
    remove_leftovers(source.parent)
    if target.exists():
        shutil.rmtree(target)
    source.rename(target)
