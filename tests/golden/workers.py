"""Processes that run cases in either version, and the temporary worktree of the base."""

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
from outcome import BASE, NEW, Report, compare_case

HERE = Path(__file__).resolve().parent
TREE = HERE.parent.parent


class Worker:
    """A process that runs cases in one version, one after another; it ends when its stdin is closed."""

    def __init__(self, role: str, source: Path, work: Path, models: Path):
        self.role, self.source, self.work, self.models = role, source, work, models
        self.ended = False
        self._start()

    def _start(self) -> None:
        inherited = os.environ.get("PYTHONPATH")
        python_path = f"{self.source}{os.pathsep}{inherited}" if inherited else str(self.source)
        environment = {**os.environ, "PYTHONPATH": python_path,
                       "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1",
                       "TOKENIZERS_PARALLELISM": "false", "STEMMA_CACHE": str(self.work / self.role / "cache")}
        # In a separate session: Ctrl-C reaches only this process, which then stops the workers.
        self.process = subprocess.Popen([sys.executable, str(HERE / "driver.py"), self.role, str(self.source)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
                                        env=environment, start_new_session=True)

    def recipes(self) -> list[str]:
        """The recipes of the version: the first response of the process."""
        response = self._read_response()
        if response is None:
            raise RuntimeError(f"the {self.role} version cannot be imported; see the error above")
        return list(response["recipes"])

    def run_case(self, case: Case) -> dict[str, Any]:
        """Run a case and return the response. If the process dies, a new one is started."""
        assert self.process.stdin is not None
        commands = [[word.format(data=self.work / "data", models=self.models) if word.startswith("{") else word
                     for word in command] for command in case.commands]
        request = {"folder": str(self.folder(case)), "init": case.init, "commands": commands,
                   "initial_weights": str(self.work / "initial_weights" / case.name)}
        self.process.stdin.write(json.dumps(request) + "\n")
        response = self._read_response()
        if response is None and self.ended:
            raise RuntimeError("the comparison was stopped")
        if response is None:
            error = f"the process ended with {self.process.wait()}"
            self._start()
            self.recipes()
            response = {"error": error, "seconds": 0.0, "networks": 0, "notes": [], "problems": []}
        return response

    def folder(self, case: Case) -> Path:
        return self.work / self.role / case.name

    def _read_response(self) -> dict[str, Any] | None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def end(self) -> None:
        self.ended = True  # before the kill, so that run_case does not start a new process
        self.process.kill()
        self.process.wait()


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """Check the commit out in a worktree, which is removed afterwards."""
    git = ["git", "-C", str(TREE), "worktree"]
    try:
        # In separate sessions, so that a second Ctrl-C does not stop the removal.
        subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True, start_new_session=True)
        yield folder
    finally:  # --force twice also removes a locked, unfinished worktree
        subprocess.run([*git, "remove", "--force", "--force", str(folder)], check=False, start_new_session=True)


class Comparison:
    """Runs cases in both versions: the base first, because the new version starts from its initial weights."""

    def __init__(self, workers: Sequence[Worker], work: Path, keep: bool):
        self.workers, self.work, self.keep = workers, work, keep
        self.waiting: dict[str, queue.Queue[Case | None]] = {role: queue.Queue() for role in (BASE, NEW)}
        self.base_responses: dict[str, dict[str, Any]] = {}
        self.finished: queue.Queue[Report | Exception] = queue.Queue()

    def run(self, selected: Sequence[Case], jobs: int) -> Iterator[Report]:
        """Reports as cases finish. With one job the base runs all cases first; otherwise both run in parallel."""
        for case in (*selected, None):
            self.waiting[BASE].put(case)
        threads = [list(self.workers)] if jobs == 1 else [[worker] for worker in self.workers]
        for workers in threads:
            threading.Thread(target=self._serve, args=(workers,), daemon=True).start()
        for index in range(len(selected)):
            report = self.finished.get()
            if isinstance(report, Exception):
                raise report
            if index == len(selected) - 1:
                self.waiting[NEW].put(None)
            yield report

    def _serve(self, workers: Sequence[Worker]) -> None:
        try:
            for worker in workers:
                waiting = self.waiting[worker.role]
                while (case := waiting.get()) is not None:
                    self._run_case(worker, case)
                waiting.put(None)  # for the other workers of this version
        except Exception as error:
            self.finished.put(error)

    def _run_case(self, worker: Worker, case: Case) -> None:
        response = worker.run_case(case)
        if worker.role == BASE:
            self.base_responses[case.name] = response
            self.waiting[NEW].put(case)
            return
        report = compare_case(case, {BASE: self.base_responses.pop(case.name), NEW: response}, self.work)
        if not self.keep:
            for folder in (self.work / BASE, self.work / NEW, self.work / "initial_weights"):
                shutil.rmtree(folder / case.name, ignore_errors=True)
        self.finished.put(report)
