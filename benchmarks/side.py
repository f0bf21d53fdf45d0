"""What every benchmark shares: each side in its own process, alternating slices of work, medians, ratios last.

A side is a program that reads the word "go" and answers with the seconds a slice took, until it reads "stop" and
answers with its peak memory. The machine's noise then hurts both sides alike.
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
    """The side's part: run a slice whenever asked; the first is a warm-up and is not counted by the asker."""
    for line in sys.stdin:
        if line.strip() == "stop":
            break
        began = time.perf_counter()
        result = slice_of_work()
        print(json.dumps({"seconds": time.perf_counter() - began, "result": result}), flush=True)
    tell_peak()


def tell_peak() -> None:
    print(json.dumps({"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}), flush=True)


def serve_loop(loop: Any, steps: int) -> None:
    """The same part for a loop of ours: a slice is so many of its steps."""
    from stemma.training.progress_bar import ProgressBar

    def work() -> float | None:
        with ProgressBar("", "", enabled=False) as progress:
            for _ in range(steps):
                loop._step(progress)
        return loop.state.loss

    serve(work)


def trainer_slices(steps: int) -> Any:
    """The same part for transformers' Trainer, as a callback: it stops after every `steps` steps and waits for the word
    to go on."""
    from transformers import TrainerCallback

    class Slices(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            self.done = getattr(self, "done", 0) + 1
            if self.done % steps == 0:
                print(json.dumps({"seconds": time.perf_counter() - self.began, "result": None}), flush=True)
                self.wait(control)

        def on_train_begin(self, args, state, control, **kwargs):
            self.wait(control)

        def wait(self, control):
            if sys.stdin.readline().strip() != "go":
                control.should_training_stop = True
            self.began = time.perf_counter()

    return Slices()



class Side:
    def __init__(self, name: str, script: Path, arguments: list[str]):
        self.name = name
        self.process = subprocess.Popen([sys.executable, str(script), *arguments], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.seconds: list[float] = []
        self.results: list[object] = []
        self.peak_mib = 0.0

    def ask(self, word: str) -> dict[str, float]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError(f"the side {self.name} ended early")
            if line.startswith('{"'):  # the peer prints other things too
                return json.loads(line)


def compare(sides: list[Side], rounds: int) -> None:
    """Fill each side's seconds and peak memory, a slice at a time in turn."""
    for side in sides:
        side.ask("go")  # warm-up: imports, caches, first allocations
    for number in range(rounds):
        for side in sides[::1 if number % 2 else -1]:
            answer = side.ask("go")
            side.seconds.append(answer["seconds"])
            side.results.append(answer["result"])
    for side in sides:
        side.peak_mib = side.ask("stop")["peak_mib"]
        side.process.wait(timeout=60)


def report(sides: list[Side], unit: str, amount: float) -> dict[str, dict[str, float]]:
    """Print each side beside the first one; `amount` of `unit` is one slice."""
    ours = sides[0]
    rows = {}
    for side in sides:
        median = statistics.median(side.seconds)
        rows[side.name] = {"median_seconds": median, f"{unit}_per_second": amount / median, "peak_mib": side.peak_mib}
        print(f"{side.name:<34} {median * 1000:9.0f} ms a slice   {amount / median:12,.0f} {unit}/s   "
              f"peak {side.peak_mib:7,.0f} MiB")
    for side in sides[1:]:
        faster = statistics.median(a / b for a, b in zip(side.seconds, ours.seconds, strict=True))
        memory = ours.peak_mib / side.peak_mib
        rows[side.name] |= {"speed_ratio": faster, "memory_ratio": memory}
        print(f"{ours.name} against {side.name}: {faster:.2f}x the speed, {memory:.2f}x the memory")
    return rows
