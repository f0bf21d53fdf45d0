"""Commands in children of one warm process: torch is imported once, and a child is a process that can be killed.

`start("resume", run)` is `stemma resume run`, but begins in milliseconds; `python(program)` is `python -c program`.
Whatever a test starts is stopped when the test ends, also when it fails (`stop_what_is_left`, called after every test),
and on Linux when the tests are killed.
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

WARM = """
import contextlib, ctypes, gc, importlib, json, os, pkgutil, signal, sys, traceback

def end_with_parent():
    with contextlib.suppress(OSError, AttributeError):  # Linux alone can ask for that
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

end_with_parent()
import torch._dynamo, stemma
from stemma.cli import _build_command, main

# everything slow, also what verbs import when they run: the libraries of metrics, matplotlib and its fonts
for name in ("sklearn.metrics", "scipy.stats", "seqeval.metrics", "seqeval.scheme", "sacrebleu.metrics", "numpy.ma",
             "rouge_score.rouge_scorer", "nltk.tokenize", "rich.console", "rich.progress", "rich.table", "rich.tree"):
    importlib.import_module(name)
for module in pkgutil.walk_packages(stemma.__path__, "stemma."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
_build_command()
stemma.lab.report.plots.learning_curve({"loss": [(0, 0), (1, 1)]}, {}, "steps", "loss")
gc.collect()
gc.freeze()  # a child copies no page for looking through what it shares
os.fsync = lambda handle: None  # a kill leaves what was written; only a power cut would not

for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if not child:
        end_with_parent()
        os.environ.update(job["environment"])
        os.chdir(job["folder"])
        for number, name in enumerate((job["input"], job["out"], job["err"])):
            os.dup2(os.open(name, os.O_RDWR | (os.O_CREAT | os.O_TRUNC if number else 0)), number)
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
class Finished:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        """The one object on stdout."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


class Running:
    def __init__(self, job: dict[str, Any]):
        self.folder = tempfile.TemporaryDirectory()
        self.files = [str(Path(self.folder.name) / name) for name in ("out", "err")]
        job = {"arguments": [], "environment": {}, "input": os.devnull, "report": True, **job,
               "out": self.files[0], "err": self.files[1], "folder": str(job["folder"] or Path.cwd())}
        for file in self.files:  # a child may be killed before it opens them
            Path(file).touch()
        _server().stdin.write(json.dumps(job) + "\n")
        self.process = int(_server().stdout.readline())
        self.ended = False
        _running.append(self)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process, number)

    def stop(self) -> None:
        """Kill it and hear of its end; nothing where it has ended."""
        if not self.ended:
            with suppress(ProcessLookupError):
                self.send(signal.SIGKILL)
            self._hear()

    def _hear(self) -> int:
        code = int(_server().stdout.readline())
        self.ended = True
        _running.remove(self)
        return code

    def wait(self) -> Finished:
        code = self._hear()
        out, err = (Path(file).read_text() for file in self.files)
        self.folder.cleanup()
        return Finished(code, out, err)

    def kill_when(self, condition: Callable[[], object], signal_number: signal.Signals = signal.SIGKILL) -> Finished:
        """Wait until something is so, then send the signal at once; the child may have ended before."""
        deadline = time.monotonic() + 200  # the machine may have much else to do
        while not condition():
            if time.monotonic() > deadline:
                self.send(signal.SIGKILL)
                raise AssertionError(f"it never came to that: {self.wait()}")
            time.sleep(0.0005)
        with suppress(ProcessLookupError):
            self.send(signal_number)
        return self.wait()


_running: list[Running] = []


def stop_what_is_left() -> None:
    for running in tuple(_running):
        running.stop()


@contextmanager
def process(*command: object, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process of its own, as users start one; it is over when the block is, however that ends."""
    with subprocess.Popen([str(word) for word in command], **options) as started:
        try:
            yield started
        finally:
            started.kill()


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Ends by itself when this process does: its stdin is then closed."""
    # Threads that wait must not spin: tests share few cores.
    return subprocess.Popen([sys.executable, "-c", WARM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            bufsize=1, env={**os.environ, "OMP_WAIT_POLICY": "passive"})


def start(*arguments: object, standard_input: str = os.devnull, folder: str | Path | None = None, report: bool = True,
          **environment: str) -> Running:
    """`report=False` leaves out the drawing of report.html, which takes as long as a dozen steps of training."""
    return Running({"arguments": [str(word) for word in arguments], "environment": environment, "input": standard_input,
                    "folder": folder, "report": report})


def stemma(*arguments: object, standard_input: str = os.devnull, folder: str | Path | None = None, report: bool = True,
           **environment: str) -> Finished:
    return start(*arguments, standard_input=standard_input, folder=folder, report=report, **environment).wait()


def python(program: str, folder: str | Path | None = None) -> Finished:
    return Running({"program": program, "folder": folder}).wait()


# for tests that look at weights and scores only
start_unreported, stemma_unreported = (functools.partial(call, report=False) for call in (start, stemma))


def ends_alike(command: list[object], whole: Path, run: Path, moments: list[Callable[[], object]], sets: list[Path],
               files: Callable[[Path], list[bytes]]) -> Finished:
    """A fine-tune killed with -9 at each of these moments and taken up again ends in the bytes and scores of one that
    was left alone. What it learns from (`sets`) is gone after the first kill: a run needs its own folder only."""
    reference = stemma_unreported(*command, "--out", whole)
    assert reference.code == 0, reference.err
    for number, moment in enumerate(moments):
        ended = start_unreported(*([*command, "--out", run] if number == 0 else ["resume", run])).kill_when(moment)
        assert ended.code == -signal.SIGKILL, ended.err
        for file in sets if number == 0 else []:
            file.unlink()
    assert not (run / "result.json").exists()
    resumed = stemma_unreported("resume", run, "--json")
    assert resumed.code == 0, resumed.err
    assert files(run) == files(whole)
    assert resumed.json["metrics"] == reference.json["metrics"]
    assert not [path for path in run.rglob("*") if path.name.endswith((".tmp", ".old"))]
    return resumed


def reached(run: Path, step: int) -> bool:
    """Whether a checkpoint of this step or a later one stands."""
    return any(int(folder.name.removeprefix("step-")) >= step for folder in (run / "checkpoints").glob("step-*"))
