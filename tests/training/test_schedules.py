import math

import pytest
import torch
from pydantic import TypeAdapter

from stemma.schema.training import AnySchedule
from stemma.training.schedules import lr_factor

STEPS, WARMUP = 40, 8


def settings(kind, **keys):
    return TypeAdapter(AnySchedule).validate_python({"kind": kind, **keys})


def at(schedule, step, steps=STEPS, warmup=WARMUP):
    return lr_factor(schedule, step, warmup, step / steps, warmup / steps)


def reference(build, step, *arguments, **keywords):
    """What transformers' schedule gives after `step` calls, by its own scheduler."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    return build(optimizer, *arguments, **keywords).lr_lambdas[0](step)


@pytest.mark.parametrize("warmup", [0, 1, 8, 40])
def test_linear_matches_transformers(warmup):
    from transformers import get_linear_schedule_with_warmup as build

    for step in range(1, STEPS + 1):
        assert at(settings("linear"), step, warmup=warmup) == pytest.approx(reference(build, step, warmup, STEPS))


def test_cosine_matches_transformers():
    from transformers import get_cosine_schedule_with_warmup as build

    for step in range(1, STEPS + 1):
        assert at(settings("cosine"), step) == pytest.approx(reference(build, step, WARMUP, STEPS), abs=1e-12)


def test_cosine_ends_on_its_floor():
    schedule = settings("cosine", floor=0.1)
    assert at(schedule, STEPS) == pytest.approx(0.1)
    assert at(schedule, WARMUP) == pytest.approx(1.0)
    assert at(schedule, (STEPS + WARMUP) // 2) == pytest.approx(0.55)


def test_noam_matches_the_paper_divided_by_its_peak():
    def paper(step, width=512):
        return width**-0.5 * min(step**-0.5, step * WARMUP**-1.5)

    for step in range(1, 3 * STEPS):
        assert at(settings("noam"), step) == pytest.approx(paper(step) / paper(WARMUP))


def test_noam_decays_as_transformers_inverse_square_root():
    from transformers import get_inverse_sqrt_schedule as build

    for step in range(1, STEPS):
        assert at(settings("noam"), step) == pytest.approx(reference(build, step, WARMUP))


def test_inverse_sqrt_matches_t5_divided_by_its_peak():
    for step in range(1, 3 * STEPS):
        assert at(settings("inverse_sqrt"), step) == pytest.approx(math.sqrt(WARMUP) / math.sqrt(max(step, WARMUP)))


def test_constant_warms_up_and_stays_at_the_peak():
    result = [at(settings("constant"), step) for step in range(1, STEPS + 1)]
    assert result == pytest.approx([min(1.0, step / WARMUP) for step in range(1, STEPS + 1)])


@pytest.mark.parametrize(("cut", "ratio"), [(0.1, 32.0), (0.25, 10.0)])
def test_slanted_triangular_matches_the_paper(cut, ratio):
    def paper(t):
        turn = math.floor(STEPS * cut)
        p = t / turn if t < turn else 1 - (t - turn) / (turn * (1 / cut - 1))
        return (1 + p * (ratio - 1)) / ratio

    for t in range(STEPS + 1):
        assert lr_factor(settings("slanted_triangular", cut=cut, ratio=ratio), t + 1, 999, t / STEPS,
                      0.5) == pytest.approx(paper(t))


@pytest.mark.parametrize(("shape", "floor", "decay", "warmup", "expected"), [  # step: factor, of 40 steps
    ("linear", 0.0, 0.4, 8, {1: 1 / 8, 4: 0.5, 8: 1, 24: 1, 28: 0.75, 32: 0.5, 40: 0}),
    ("linear", 0.2, 0.5, 0, {1: 1, 20: 1, 30: 0.6, 40: 0.2}),
    ("one_minus_sqrt", 0.0, 0.4, 8, {8: 1, 24: 1, 25: 0.75, 28: 0.5, 33: 0.25, 40: 0}),
    ("one_minus_sqrt", 0.1, 0.4, 8, {24: 1, 28: 0.55, 40: 0.1}),
    ("linear", 0.0, 1.0, 8, {4: 0.5, 8: 1, 16: 0.75, 24: 0.5, 40: 0}),  # no level: `linear`
    ("linear", 0.0, 0.9, 20, {10: 0.5, 19: 0.95, 20: 1, 30: 0.5, 40: 0}),  # the warm-up reaches into the decay
])
def test_warmup_stable_decay_has_the_expected_factors(shape, floor, decay, warmup, expected):
    schedule = settings("warmup_stable_decay", shape=shape, floor=floor, decay=decay)
    assert {step: at(schedule, step, warmup=warmup) for step in expected} == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("shape", "theirs"), [("linear", "linear"), ("one_minus_sqrt", "1-sqrt")])
def test_warmup_stable_decay_matches_transformers(shape, theirs):
    from transformers import get_wsd_schedule as build

    schedule = settings("warmup_stable_decay", shape=shape, decay=0.3)
    for step in range(1, STEPS + 1):
        assert at(schedule, step) == pytest.approx(reference(build, step, WARMUP, 12, STEPS, decay_type=theirs))


@pytest.mark.parametrize("shape", ["linear", "one_minus_sqrt"])
def test_warmup_stable_decay_has_no_update_with_factor_0(shape):
    """Progress is counted before an update, as the loop does."""
    schedule = settings("warmup_stable_decay", shape=shape, decay=0.25)
    result = [lr_factor(schedule, s, WARMUP, (s - 1) / STEPS, WARMUP / STEPS) for s in range(1, STEPS + 1)]
    assert min(result) > 0 and result[WARMUP - 1:31] == [1.0] * 24
    assert result[30:] == sorted(set(result[30:]), reverse=True)


@pytest.mark.parametrize("kind", ["linear", "noam", "cosine", "inverse_sqrt", "constant", "slanted_triangular",
                                  "warmup_stable_decay"])
def test_every_factor_is_between_0_and_1_and_the_peak_is_1(kind):
    """Also if progress does not match the steps, as with a budget in minutes."""
    for warmup in (0, 1, 8, 50):
        for step in range(1, 50):
            for progress in (0.0, 0.1, 0.5, 0.999, 1.0, 1.3):
                for warmup_progress in (0.0, 0.3, 1.0, 1.4):
                    assert 0 <= lr_factor(settings(kind), step, warmup, progress, warmup_progress) <= 1
    # progress counted before the update, as the loop does
    highest = max(lr_factor(settings(kind), s, WARMUP, (s - 1) / STEPS, WARMUP / STEPS) for s in range(1, STEPS + 1))
    assert highest == 1


def test_linear_has_no_update_with_factor_0():
    result = [lr_factor(settings("linear"), s, WARMUP, (s - 1) / STEPS, WARMUP / STEPS) for s in range(1, STEPS + 1)]
    assert min(result) > 0
    assert result[WARMUP:] == sorted(result[WARMUP:], reverse=True)
