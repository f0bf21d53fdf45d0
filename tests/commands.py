"""Runs `stemma` commands in children of one server process that has already imported torch; a test can kill a child.

`start("resume", run)` is `stemma resume run`, but starts in milliseconds. `python(program)` is `python -c program`.
`stop_running_commands` runs after every test, so nothing that a test starts outlives it. On Linux the children also end
when pytest is killed.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVER = """
import contextlib, ctypes, gc, importlib, json, os, pkgutil, signal, sys, traceback

def end_with_parent():
    with contextlib.suppress(OSError, AttributeError):  # only Linux has prctl
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

end_with_parent()
import torch._dynamo, stemma
from stemma.cli import _build_command, main

# import everything that is slow, including what commands import late: metric libraries, matplotlib and its fonts
for name in ("sklearn.metrics", "sklearn.linear_model", "sklearn.model_selection", "sklearn.dummy", "scipy.stats",
             "sklearn.feature_extraction.text", "seqeval.metrics", "seqeval.scheme", "sacrebleu.metrics", "numpy.ma",
             "rouge_score.rouge_scorer", "nltk.tokenize", "rich.console", "rich.progress", "rich.table", "rich.tree"):
    importlib.import_module(name)
for module in pkgutil.walk_packages(stemma.__path__, "stemma."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
_build_command()
stemma.lab.report.plots.learning_curve({"loss": [(0, 0), (1, 1)]}, {}, "steps", "loss")
gc.collect()
gc.freeze()  # garbage collection in a child must not copy the shared pages
os.fsync = lambda handle: None  # written data survives a kill; only a power cut would lose it

for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if not child:
        end_with_parent()
        os.environ.update(job["environment"])
        os.chdir(job["folder"])
        for stream, name in enumerate((job["input"], job["out"], job["err"])):
            os.dup2(os.open(name, os.O_RDWR | (os.O_CREAT | os.O_TRUNC if stream else 0)), stream)
        if not job["report"]:
            stemma.lab.report.run_html.write_report = lambda run: None
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)
        code = main(job["arguments"]) if "program" not in job else 1
        if "program" in job:
            try:
                exec(compile(job["program"], "<program>", "exec"), {"__name__": "__main__"})
                code = 0
            except BaseException:
                traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass
class CompletedCommand:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        """The JSON object on stdout, which must be its only line."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


class RunningCommand:
    def __init__(self, job: dict[str, Any]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.files = [str(Path(self.folder.name) / name) for name in ("out", "err")]
        job = {"arguments": [], "environment": {}, "input": os.devnull, "report": True, **job,
               "out": self.files[0], "err": self.files[1], "folder": str(job["folder"] or Path.cwd())}
        for file in self.files:  # they exist even if the child is killed before it opens them
            Path(file).touch()
        _server().stdin.write(json.dumps(job) + "\n")
        self.process = int(_server().stdout.readline())
        self.ended = False
        _running.append(self)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process, number)

    def stop(self) -> None:
        """Kill the command and wait for it; do nothing if it has ended."""
        if not self.ended:
            with suppress(ProcessLookupError):
                self.send(signal.SIGKILL)
            self._read_exit_code()

    def _read_exit_code(self) -> int:
        code = int(_server().stdout.readline())
        self.ended = True
        _running.remove(self)
        return code

    def wait(self) -> CompletedCommand:
        code = self._read_exit_code()
        out, err = (Path(file).read_text() for file in self.files)
        self.folder.cleanup()
        return CompletedCommand(code, out, err)

    def kill_when(self, condition: Callable[[], object],
                  signal_number: signal.Signals = signal.SIGKILL) -> CompletedCommand:
        """Send the signal as soon as the condition holds. The child may have ended before that."""
        deadline = time.monotonic() + 200  # the machine may be busy
        while not condition():
            if time.monotonic() > deadline:
                self.send(signal.SIGKILL)
                raise AssertionError(f"the condition never held: {self.wait()}")
            time.sleep(0.0005)
        with suppress(ProcessLookupError):
            self.send(signal_number)
        return self.wait()


_running: list[RunningCommand] = []


def stop_running_commands() -> None:
    for running in tuple(_running):
        running.stop()


@contextmanager
def process(*command: object, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A separate process, as users start one. It is killed when the block ends, also by an exception."""
    with subprocess.Popen([str(word) for word in command], **options) as started:
        try:
            yield started
        finally:
            started.kill()


@functools.cache
def _server() -> subprocess.Popen[str]:
    """The process that forks a child per command. It exits when its stdin is closed, so no later than this process."""
    # Waiting threads must not spin: tests share few cores.
    return subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            bufsize=1, env={**os.environ, "OMP_WAIT_POLICY": "passive"})


def start(*arguments: object, standard_input: str = os.devnull, folder: str | Path | None = None, report: bool = True,
          **environment: str) -> RunningCommand:
    """Start `stemma ARGUMENTS`. `report=False` skips report.html, which takes as long as a dozen training steps."""
    return RunningCommand({"arguments": [str(word) for word in arguments], "environment": environment,
                           "input": standard_input, "folder": folder, "report": report})


def stemma(*arguments: object, standard_input: str = os.devnull, folder: str | Path | None = None, report: bool = True,
           **environment: str) -> CompletedCommand:
    return start(*arguments, standard_input=standard_input, folder=folder, report=report, **environment).wait()


def python(program: str, folder: str | Path | None = None) -> CompletedCommand:
    return RunningCommand({"program": program, "folder": folder}).wait()


# for tests that read only weights and scores
start_unreported, stemma_unreported = (functools.partial(call, report=False) for call in (start, stemma))


def assert_killed_run_resumes_identically(command: list[object], uninterrupted: Path, run: Path,
                                          kill_conditions: list[Callable[[], object]], datasets: list[Path],
                                          files: Callable[[Path], list[bytes]]) -> CompletedCommand:
    """A fine-tune that is killed with SIGKILL at each condition and resumed has the files and scores of an
    uninterrupted one. `datasets` are deleted after the first kill: from then on a run needs only its own folder."""
    reference = stemma_unreported(*command, "--out", uninterrupted)
    assert reference.code == 0, reference.err
    for index, condition in enumerate(kill_conditions):
        killed = start_unreported(*([*command, "--out", run] if index == 0 else ["resume", run])).kill_when(condition)
        assert killed.code == -signal.SIGKILL, killed.err
        for file in datasets if index == 0 else []:
            file.unlink()
    assert not (run / "result.json").exists()
    resumed = stemma_unreported("resume", run, "--json")
    assert resumed.code == 0, resumed.err
    assert files(run) == files(uninterrupted)
    assert resumed.json["metrics"] == reference.json["metrics"]
    assert baseline_scores(resumed.json) == baseline_scores(reference.json)
    assert not [path for path in run.rglob("*") if path.name.endswith((".tmp", ".old"))]
    return resumed


def baseline_scores(result: dict[str, Any]) -> dict[str, Any]:
    """The scores of the linear baseline, without how long it took."""
    return {split: scores for split, scores in result.get("baseline", {}).get("linear", {}).items() if split != "fit"}


def has_checkpoint(run: Path, step: int) -> bool:
    """Whether the run has a checkpoint of this step or a later one."""
    return any(int(folder.name.removeprefix("step-")) >= step for folder in (run / "checkpoints").glob("step-*"))
