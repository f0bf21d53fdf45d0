"""Measures time and memory of passes: warm-up, then rounds in which all passes take turns; the median of the rounds.

A shared machine slows down for seconds at a time. As the passes take turns, such a phase hits all of them. One thread
on a CPU is measured in processor time, in which other programs do not count; everything else in wall-clock time. The
time is bounded: passes that would not fit into what is left of it are left out and named, and there are fewer rounds.

Memory is what a pass allocates at its peak, above the memory before it. On a GPU it is the counter of torch's
allocator. On a CPU the profiler records each allocation and release of torch's allocator. Buffers of libraries
(oneDNN, BLAS) are not counted there.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import torch

from stemma.network.memory_check import total_memory
from stemma.progress import format_duration, progress_stage

logger = logging.getLogger(__name__)

MIN_SLICE_SECONDS = 0.02  # a shorter pass is repeated within a round
WARMUP_PASSES = 4  # passes of a cell before the rounds: first, timed, memory, and a margin
FINE_RESOLUTION = 1e-4  # seconds; the processor time of Windows is coarser than a pass
GROWTH = 2.0  # assumed exponent of the next length: attention is no worse


@dataclass
class TimedPass:
    """A pass that is measured: `group` are passes that differ in length alone, from short to long."""

    group: tuple[object, ...]
    length: int
    run: Callable[[], None]
    seconds: list[float] = field(default_factory=list)  # a pass takes these, by round
    bytes: int | None = None  # None: this device has no counter
    repeats: int = 1
    wall_seconds: float = 0.0  # of a pass in the warm-up, also on a busy machine
    left_out: str | None = None  # why it is not measured

    @property
    def median_seconds(self) -> float:
        return median(self.seconds)


@dataclass(frozen=True)
class Clock:
    """The clock that is read before and after a pass."""

    device: torch.device
    name: str
    read: Callable[[], float]

    def seconds(self, timed: TimedPass, repeats: int) -> float:
        """Seconds of one pass, the mean of `repeats`."""
        start = self.read()
        for _ in range(repeats):
            timed.run()
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        return max(self.read() - start, 1e-9) / repeats


def choose_clock(device: torch.device) -> Clock:
    fine = time.get_clock_info("process_time").resolution <= FINE_RESOLUTION
    if device.type == "cpu" and torch.get_num_threads() == 1 and fine:
        return Clock(device, "processor time", time.process_time)
    return Clock(device, "wall-clock time", time.perf_counter)


def measure(passes: Sequence[TimedPass], rounds: int, minutes: float, clock: Clock) -> int:
    """Measure all passes in place; returns the number of rounds. Every measured pass has at least one."""
    deadline = time.perf_counter() + 60 * minutes
    ready = _warm_up(passes, deadline, clock)
    round_seconds = sum(timed.repeats * timed.wall_seconds for timed in ready)
    left = deadline - time.perf_counter()
    affordable = max(1, min(rounds, int(left / round_seconds) if round_seconds else rounds))
    if affordable < rounds:
        logger.info(f"{affordable} of {rounds} rounds fit into {minutes:g} minutes; --minutes gives more.")
    if round_seconds * affordable > 10:
        logger.info(f"estimated time of the rounds: {format_duration(round_seconds * affordable)}")
    for timed in ready:
        timed.seconds = []
    with progress_stage("measuring", affordable * len(ready), "passes") as work:
        for index in range(affordable):
            for timed in ready if index % 2 == 0 else ready[::-1]:  # no pass always runs after the same one
                timed.seconds.append(clock.seconds(timed, timed.repeats))
                work.advance()
    return affordable


def _warm_up(passes: Sequence[TimedPass], deadline: float, clock: Clock) -> list[TimedPass]:
    """Run every pass that fits into time and memory; its second run is a first measurement."""
    shorter: dict[tuple[object, ...], TimedPass] = {}
    ready = []
    with progress_stage("warming up", len(passes), "passes") as work:
        for timed in sorted(passes, key=lambda timed: timed.length):
            previous = shorter.get(timed.group)
            timed.left_out = None if previous is None else _reason_to_leave_out(timed, previous, deadline)
            shorter[timed.group] = timed
            work.advance()
            if timed.left_out is not None:
                continue
            timed.run()
            start = time.perf_counter()
            timed.seconds = [clock.seconds(timed, 1)]
            timed.wall_seconds = time.perf_counter() - start
            timed.bytes = peak_bytes(timed.run, clock.device)
            timed.repeats = max(1, round(MIN_SLICE_SECONDS / timed.seconds[0]))
            ready.append(timed)
    return ready


def _reason_to_leave_out(timed: TimedPass, previous: TimedPass, deadline: float) -> str | None:
    if previous.left_out is not None:
        return previous.left_out
    growth = (timed.length / previous.length) ** GROWTH
    seconds, available = growth * previous.wall_seconds, deadline - time.perf_counter()
    if (WARMUP_PASSES + 1) * seconds > available:
        return f"a pass could take {seconds:,.3g} s, and {max(0.0, available):,.0f} s are left of --minutes"
    size, total = growth * (previous.bytes or 0), total_memory()
    if total and size > total:
        return f"a pass could take {size / 1e9:,.0f} GB, and this machine has {total / 1e9:,.0f} GB"
    return None


def peak_bytes(run: Callable[[], None], device: torch.device) -> int | None:
    """The most memory that the pass has allocated at one time, above the memory before it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device)) - before
    if device.type != "cpu":
        return None
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's library would write two lines to stderr
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events = sorted((event.start_ns(), index, event.nbytes()) for index, event in enumerate(
        profile.profiler.kineto_results.events()) if event.name() == "[memory]")
    changes = [size for _, _, size in events]
    return int(np.cumsum(changes).max(initial=0))


@contextmanager
def num_threads(threads: int | None) -> Iterator[int]:
    """Compute with this number of threads inside the block; None: as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield threads or before
    finally:
        torch.set_num_threads(before)


def power_law(sizes: Sequence[Sequence[float]], values: Sequence[float]) -> list[float] | None:
    """Exponents a, b, ... of value = c x size_1^a x size_2^b ..., by least squares of the logarithms. None if the
    measurements do not determine them."""
    if len(values) < 2 or min(values) <= 0:
        return None
    logs = np.log(np.array(sizes, dtype=np.float64).reshape(len(values), -1))
    design = np.column_stack([logs, np.ones(len(values))])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        return None
    return [float(exponent) for exponent in np.linalg.lstsq(design, np.log(values), rcond=None)[0][:-1]]
