"""Common code of the benchmarks: each library runs in its own process, in alternating slices of work.

A side is a process that runs a slice of work when it reads "go" and prints its duration; when it reads "stop" it prints
its peak memory. Slices alternate, so that other load on the machine affects both sides equally. The results are
medians, and ratios to the first side.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def serve(slice_of_work: Callable[[], object]) -> None:
    """Run in the process of a side: a slice of work for each "go". `compare` does not count the first, a warm-up."""
    for line in sys.stdin:
        if line.strip() == "stop":
            break
        start = time.perf_counter()
        result = slice_of_work()
        print(json.dumps({"seconds": time.perf_counter() - start, "result": result}), flush=True)
    print_peak_memory()


def print_peak_memory() -> None:
    print(json.dumps({"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}), flush=True)


def serve_trainer(trainer: Any, steps: int) -> None:
    """The same for Stemma's `Trainer`: a slice is `steps` training steps."""
    from stemma.training.progress_bar import ProgressBar

    def work() -> float | None:
        with ProgressBar("", "", enabled=False) as progress:
            for _ in range(steps):
                trainer._step(progress)
        return trainer.state.loss

    serve(work)


def transformers_callback(steps: int) -> Any:
    """The same for transformers' `Trainer`, as a callback: it stops after every `steps` steps and waits for "go"."""
    from transformers import TrainerCallback

    class Slices(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step % steps == 0:
                print(json.dumps({"seconds": time.perf_counter() - self.start, "result": None}), flush=True)
                self.wait(control)

        def on_train_begin(self, args, state, control, **kwargs):
            self.wait(control)

        def wait(self, control):
            if sys.stdin.readline().strip() != "go":
                control.should_training_stop = True
            self.start = time.perf_counter()

    return Slices()


class Side:
    """A process that runs slices of work on request."""

    def __init__(self, name: str, script: Path, arguments: list[str]):
        self.name = name
        self.process = subprocess.Popen([sys.executable, str(script), *arguments], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.seconds: list[float] = []
        self.results: list[object] = []
        self.peak_mib = 0.0

    def request(self, command: str) -> dict[str, Any]:
        """Send "go" or "stop", and return the answer."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError(f"the side {self.name} ended early")
            if line.startswith('{"'):  # libraries print other lines too
                return json.loads(line)


def compare(sides: list[Side], rounds: int) -> None:
    """Measure seconds and peak memory of each side, in alternating slices."""
    for side in sides:
        side.request("go")  # warm-up: imports, caches, first allocations
    for round_index in range(rounds):
        for side in sides[::1 if round_index % 2 else -1]:
            answer = side.request("go")
            side.seconds.append(answer["seconds"])
            side.results.append(answer["result"])
    for side in sides:
        side.peak_mib = side.request("stop")["peak_mib"]
        side.process.wait(timeout=60)


def report(sides: list[Side], unit: str, amount: float) -> dict[str, dict[str, float]]:
    """Print each side, and its ratio to the first one; a slice is `amount` of `unit`."""
    first = sides[0]
    rows = {}
    for side in sides:
        median = statistics.median(side.seconds)
        rows[side.name] = {"median_seconds": median, f"{unit}_per_second": amount / median, "peak_mib": side.peak_mib}
        print(f"{side.name:<34} {median * 1000:9.0f} ms per slice   {amount / median:12,.0f} {unit}/s   "
              f"peak {side.peak_mib:7,.0f} MiB")
    for side in sides[1:]:
        speedup = statistics.median(a / b for a, b in zip(side.seconds, first.seconds, strict=True))
        memory = first.peak_mib / side.peak_mib
        rows[side.name] |= {"speed_ratio": speedup, "memory_ratio": memory}
        print(f"{first.name} relative to {side.name}: {speedup:.2f}x speed, {memory:.2f}x peak memory")
    return rows
