"""Measuring passes: turns, medians, the limit of time, peak memory, exponents."""

from __future__ import annotations

import pytest
import torch

from stemma.lab import timing
from stemma.lab.timing import Clock, TimedPass, choose_clock, measure, num_threads, peak_bytes, power_law

CPU = torch.device("cpu")


class FakeTime:
    """A clock that only passes advance."""

    def __init__(self, monkeypatch):
        self.now, self.calls = 0.0, []
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(timing, "peak_bytes", self.peak_bytes)
        self.clock = Clock(CPU, "fake time", lambda: self.now)

    def peak_bytes(self, run, device) -> int:
        run()
        return 1000

    def timed(self, name: str, length: int, *seconds: float) -> TimedPass:
        """A pass that takes these seconds in turn; the last one from then on."""
        remaining = list(seconds)

        def run() -> None:
            self.calls.append((name, length))
            self.now += remaining.pop(0) if len(remaining) > 1 else remaining[0]

        return TimedPass((name,), length, run)


def test_passes_take_turns_and_the_median_counts(monkeypatch):
    fake = FakeTime(monkeypatch)
    # the first three runs warm up; one of the five rounds is slow
    a, b = fake.timed("a", 8, 1, 1, 1, 1.0, 9.0, 1.2, 1.1, 0.9), fake.timed("b", 8, 2.0)
    assert measure([a, b], 5, 60, fake.clock) == 5
    assert a.median_seconds == pytest.approx(1.1) and b.seconds == pytest.approx([2.0] * 5) and a.bytes == 1000
    rounds = [name for name, _ in fake.calls[6:]]
    assert rounds == ["a", "b", "b", "a", "a", "b", "b", "a", "a", "b"]


def test_a_short_pass_is_repeated_within_a_round(monkeypatch):
    fake = FakeTime(monkeypatch)
    short = fake.timed("a", 8, 0.001)
    measure([short], 3, 60, fake.clock)
    assert short.repeats == 20 and len(fake.calls) == 3 + 3 * 20
    assert short.seconds == pytest.approx([0.001] * 3)


def test_passes_that_do_not_fit_into_the_time_are_left_out(monkeypatch, caplog):
    fake = FakeTime(monkeypatch)
    passes = [fake.timed("slow", 10 * 4**power, 0.5 * 16**power) for power in range(4)]
    other = fake.timed("fast", 640, 0.1)
    rounds = measure([*passes, other], 5, 1.0, fake.clock)  # one minute
    assert [timed.left_out is None for timed in passes] == [True, True, False, False] and other.left_out is None
    assert passes[2].left_out == "a pass could take 128 s, and 34 s are left of --minutes"
    assert passes[3].left_out == passes[2].left_out
    assert rounds == 3 and len(passes[1].seconds) == 3 and fake.now <= 60
    assert any("3 of 5 rounds fit into 1 minutes" in record.message for record in caplog.records)


def test_passes_that_do_not_fit_into_memory_are_left_out(monkeypatch):
    fake = FakeTime(monkeypatch)
    monkeypatch.setattr(timing, "total_memory", lambda: 3_000)
    passes = [fake.timed("a", length, 0.1) for length in (10, 15, 20)]
    measure(passes, 1, 60, fake.clock)
    assert [timed.left_out is None for timed in passes] == [True, True, True]  # 1.5^2 x 1,000 bytes, measured as 1,000
    longer = [fake.timed("a", length, 0.1) for length in (10, 20)]
    measure(longer, 1, 60, fake.clock)
    assert longer[1].left_out.startswith("a pass could take 0 GB, and this machine has 0 GB")


def test_the_peak_counts_what_is_allocated_at_one_time():
    def run() -> None:
        first = torch.empty(1_000_000)  # 4 MB
        second = torch.empty(500_000)
        del first
        third = torch.empty(1_000_000)
        del second, third

    assert peak_bytes(run, CPU) == pytest.approx(6_000_000, rel=0.01)
    assert peak_bytes(lambda: None, CPU) == 0
    kept = torch.zeros(1_000_000)
    assert peak_bytes(lambda: kept.add_(1), CPU) < 100_000  # memory from before is not counted


def test_one_thread_is_measured_in_processor_time():
    with num_threads(1) as threads:
        assert threads == 1 and choose_clock(CPU).name == "processor time"
    before = torch.get_num_threads()
    with num_threads(2):
        assert torch.get_num_threads() == 2 and choose_clock(CPU).name == "wall-clock time"
    assert torch.get_num_threads() == before


def test_exponents_are_those_of_the_law():
    grid = [(n, d) for n in (10, 30, 100) for d in (8, 64)]
    assert power_law(grid, [3e-9 * n**2 * d**0.5 for n, d in grid]) == pytest.approx([2.0, 0.5])
    assert power_law([[n] for n in (1, 2, 8)], [5 * n**1.25 for n in (1, 2, 8)]) == pytest.approx([1.25])
    assert power_law([[10]], [1.0]) is None
    assert power_law([(10, 8), (20, 8), (40, 8)], [1.0, 2.0, 3.0]) is None  # one width has no exponent of the width
    assert power_law([[10], [20]], [0.0, 1.0]) is None
