"""Both versions at work: the base in a temporary worktree, and processes that run cases in either."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cases import Case
from outcome import BASE, NEW, Report, judge

HERE = Path(__file__).resolve().parent
TREE = HERE.parent.parent


class Worker:
    """A process that runs cases in one version, one after the other; it ends when its stdin is closed."""

    def __init__(self, role: str, source: Path, work: Path, models: Path):
        self.role, self.source, self.work, self.models = role, source, work, models
        self.ended = False
        self._start()

    def _start(self) -> None:
        known = os.environ.get("PYTHONPATH")
        environment = {**os.environ, "PYTHONPATH": f"{self.source}{os.pathsep}{known}" if known else str(self.source),
                       "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1",
                       "TOKENIZERS_PARALLELISM": "false", "STEMMA_CACHE": str(self.work / self.role / "cache")}
        # In a session of its own: Ctrl-C is for this process, which then ends the others.
        self.process = subprocess.Popen([sys.executable, str(HERE / "driver.py"), self.role, str(self.source)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
                                        env=environment, start_new_session=True)

    def recipes(self) -> list[str]:
        """Its first answer."""
        found = self._hear()
        if found is None:
            raise RuntimeError(f"the {self.role} version cannot be imported; the reason stands above")
        return list(found["recipes"])

    def ask(self, case: Case) -> dict[str, Any]:
        """What became of a case. A process that dies of it is replaced."""
        assert self.process.stdin is not None
        commands = [[word.format(data=self.work / "data", models=self.models) if word.startswith("{") else word
                     for word in command] for command in case.commands]
        request = {"folder": str(self.folder(case)), "starts": str(self.work / "starts" / case.name), "draw": case.draw,
                   "commands": commands}
        self.process.stdin.write(json.dumps(request) + "\n")
        found = self._hear()
        if found is None and self.ended:
            raise RuntimeError("the comparison was stopped")
        if found is None:
            error = f"the process ended with {self.process.wait()}"
            self._start()
            self.recipes()
            found = {"error": error, "seconds": 0.0, "networks": 0, "notes": [], "problems": []}
        return found

    def folder(self, case: Case) -> Path:
        return self.work / self.role / case.name

    def _hear(self) -> dict[str, Any] | None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def end(self) -> None:
        self.ended = True  # before it dies, so that nobody replaces it
        self.process.kill()
        self.process.wait()


@contextmanager
def checked_out(commit: str, place: Path) -> Iterator[Path]:
    """The commit in a worktree that is gone afterwards."""
    git = ["git", "-C", str(TREE), "worktree"]
    try:
        # In sessions of their own, as all that is started here: a second Ctrl-C does not stop the removal.
        subprocess.run([*git, "add", "--quiet", "--detach", str(place), commit], check=True, start_new_session=True)
        yield place
    finally:  # by force twice: one that is only half made is locked
        subprocess.run([*git, "remove", "--force", "--force", str(place)], check=False, start_new_session=True)


class Comparison:
    """Cases in both versions: the base goes first, since its initial weights are the ones to start from."""

    def __init__(self, workers: Sequence[Worker], work: Path, keep: bool):
        self.workers, self.work, self.keep = workers, work, keep
        self.waiting: dict[str, queue.Queue[Case | None]] = {role: queue.Queue() for role in (BASE, NEW)}
        self.answers: dict[str, dict[str, dict[str, Any]]] = {}
        self.finished: queue.Queue[Report | Exception] = queue.Queue()

    def run(self, chosen: Sequence[Case], jobs: int) -> Iterator[Report]:
        """Reports as they come. With one job the base runs to its end first; with more, both run side by side."""
        for case in (*chosen, None):
            self.waiting[BASE].put(case)
        turns = [list(self.workers)] if jobs == 1 else [[worker] for worker in self.workers]
        for workers in turns:
            threading.Thread(target=self._serve, args=(workers,), daemon=True).start()
        for number in range(len(chosen)):
            found = self.finished.get()
            if isinstance(found, Exception):
                raise found
            if number == len(chosen) - 1:
                self.waiting[NEW].put(None)
            yield found

    def _serve(self, workers: Sequence[Worker]) -> None:
        try:
            for worker in workers:
                waiting = self.waiting[worker.role]
                while (case := waiting.get()) is not None:
                    self._carry_out(worker, case)
                waiting.put(None)  # for the others who serve this version
        except Exception as error:
            self.finished.put(error)

    def _carry_out(self, worker: Worker, case: Case) -> None:
        told = worker.ask(case)
        if worker.role == BASE:
            self.answers[case.name] = {BASE: told}
            self.waiting[NEW].put(case)
            return
        report = judge(case, {**self.answers.pop(case.name), NEW: told}, self.work)
        if not self.keep:
            for folder in (self.work / BASE, self.work / NEW, self.work / "starts"):
                shutil.rmtree(folder / case.name, ignore_errors=True)
        self.finished.put(report)
