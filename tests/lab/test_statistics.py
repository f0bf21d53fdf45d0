"""Differences between recipes: intervals that hold what they promise, in many worlds where the truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stemma.lab.experiment import Score
from stemma.lab.paired_differences import Difference, holm_corrected, paired_difference, sample_std
from stemma.tasks.metrics.student_t import student_t, two_sided_p


def plain(values) -> list[Score]:
    return [Score(float(value)) for value in values]


def texts(seed: int, seeds: int, units: int, effect: float = 0.0, by_seed: float = 0.1, by_text: float = 0.3):
    """Two sides' bits per byte on documents of unequal length. Documents are far more unequal than the sides; each is
    easier for one side than for the other by chance, and so is each seed."""
    rng = np.random.default_rng(seed)
    size = rng.integers(200, 2000, units)
    hard, favours = rng.normal(5, 2, units), by_text * rng.normal(size=units)
    sides = []
    for side in (0.0, 1.0):
        sides.append([])
        for _ in range(seeds):
            bits = size * (hard + side * (favours + effect) + by_seed * rng.normal() + 0.02 * rng.normal(size=units))
            sides[-1].append(Score(bits.sum() / size.sum(), tuple(zip(bits.tolist(), size.tolist(), strict=True))))
    return sides


def test_spread_is_the_sample_deviation_and_one_value_has_none():
    assert sample_std([1.0, 3.0]) == pytest.approx(2**0.5)
    assert sample_std([4.0]) is None


def test_quantiles_of_t():
    # from the tables that every textbook prints
    for freedom, expected in {1: 12.706, 2: 4.303, 4: 2.776, 9: 2.262, 10: 2.228, 20: 2.086, 120: 1.980}.items():
        assert student_t(freedom) == pytest.approx(expected, abs=6e-4)
    for freedom, share, expected in [(1, 0.01, 63.657), (2, 0.001, 31.599), (3, 0.5, 0.7649), (5, 0.01, 4.032)]:
        assert student_t(freedom, share) == pytest.approx(expected, abs=6e-4)
        assert two_sided_p(expected, freedom) == pytest.approx(share, rel=1e-3)
    assert student_t(10**6) == pytest.approx(1.96, abs=0.013)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_false_alarms_are_as_rare_as_promised(seeds):
    """By seeds alone the interval is the exact one: 5% of 2,500 worlds without an effect, within three deviations."""
    rng = np.random.default_rng(seeds)
    found = [paired_difference(plain(rng.normal(size=seeds)), plain(rng.normal(size=seeds)), True) for _ in range(2500)]
    alarms = np.mean([one.verdict in ("better", "worse") for one in found])
    assert 0.037 <= alarms <= 0.063
    assert all(one.low <= one.mean <= one.high for one in found)
    assert all((one.low <= 0 <= one.high) == (one.verdict == "inconclusive") for one in found)


@pytest.mark.parametrize("seeds,units,by_seed,by_text", [
    (2, 40, 0.1, 0.3), (3, 5, 0.1, 0.3),
    *(pytest.param(*world, marks=pytest.mark.slow)
      for world in [(2, 40, 0.0, 0.5), (3, 40, 0.0, 0.5), (5, 80, 0.1, 0.05), (5, 60, 0.1, 0.3)])])
def test_of_equal_recipes_on_drawn_texts_too(seeds, units, by_seed, by_text):
    """Never above 5%: 150 worlds, three deviations above it."""
    alarms = [paired_difference(*texts(trial, seeds, units, 0.0, by_seed, by_text), False).verdict != "inconclusive"
              for trial in range(150)]
    assert np.mean(alarms) <= 0.05 + 3 * (0.05 * 0.95 / 150) ** 0.5


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_even_one_false_alarm_among_many_is_rare(seeds):
    """Ten recipes against one another's mean: without Holm's correction four of ten reports would have one."""
    rng = np.random.default_rng(seeds)
    alarms, alone = [], []
    for _ in range(300):
        single = [paired_difference(plain(rng.normal(size=seeds)), plain(rng.normal(size=seeds)),
                                    True) for _ in range(10)]
        alone.append(any(one.verdict != "inconclusive" for one in single))
        alarms.append(any(one.verdict != "inconclusive" for one in holm_corrected(single, True)))
    assert np.mean(alone) > 0.3
    assert np.mean(alarms) <= 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5


def test_holm_by_hand():
    """p of 0.01, 0.02, 0.04 become 3 x 0.01, 2 x 0.02 and 0.04: none above 5%; with 0.03 in place of 0.02 the second
    and all after it are."""
    def worlds(*shares: float) -> list[Difference]:
        return [Difference(1.0, 0.0, 2.0, "", 3, share, seed_error=0.1) for share in shares]

    assert [one.p for one in holm_corrected(worlds(0.04, 0.01, 0.02), True)] == pytest.approx([0.04, 0.03, 0.04])
    assert [one.verdict for one in holm_corrected(worlds(0.04, 0.01, 0.02), True)] == ["better"] * 3
    stricter = holm_corrected(worlds(0.04, 0.01, 0.03), True)
    assert [one.p for one in stricter] == pytest.approx([0.06, 0.03, 0.06])
    assert [one.verdict for one in stricter] == ["inconclusive", "better", "inconclusive"]
    assert {one.comparisons for one in stricter} == {3}
    untested = [Difference(0.0, 0.0, 0.0, "same bytes", 3), Difference(1.0, None, None, "one seed", 1)]
    assert holm_corrected([*untested, *worlds(0.04)], True)[:2] == untested           # and they do not count
    assert holm_corrected([*untested, *worlds(0.04)], True)[2].verdict == "better"


def test_a_p_value_is_where_the_interval_ends_at_nought():
    found = paired_difference(plain([0.0, 0.0, 0.0]), plain([0.9, 1.0, 1.1]), True)  # t = 1 / (0.1 / sqrt(3)) =
    #                                                                                  17.32
    assert found.p == pytest.approx(two_sided_p(17.3205, 2), rel=1e-4)
    assert abs(found.mean) == pytest.approx(found.half_width(found.p), rel=1e-6)


def test_equivalent_is_only_what_lies_within_the_margin():
    a, b = plain([1.0, 1.0, 1.0]), plain([1.001, 0.999, 1.0])                    # half a width of 0.0025
    assert paired_difference(a, b, True).verdict == "inconclusive"  # nobody said what would not
    #                                                                 matter
    assert paired_difference(a, b, True, margin=0.003).verdict == "equivalent"
    assert paired_difference(a, b, True, margin=0.002).verdict == "inconclusive"
    wide = plain([3.0, -1.0, 1.0])                                               # the same mean
    assert paired_difference(a, wide, True, margin=0.003).verdict == "inconclusive"
    several = holm_corrected([paired_difference(a, b, True, margin=0.003)] * 10, True)       # each of ten must be surer
    assert {one.verdict for one in several} == {"inconclusive"}
    # small, but there
    assert paired_difference(a, plain([1.002, 1.0021, 1.0019]), True, margin=0.1).verdict == "better"


def test_how_many_seeds_would_decide():
    """With so many seeds like these, four of five repetitions decide; with half of them, fewer than half do."""
    rng = np.random.default_rng(1)
    true, noise = 1.0, 1.0
    found = Difference(true, None, None, "", 3, 0.2, seed_error=noise / 3**0.5)
    needed = holm_corrected([found], True)[0].needed
    assert needed == 10

    def power(seeds: int) -> float:
        return np.mean([paired_difference(plain([0.0] * seeds), plain(true + noise * rng.normal(size=seeds)),
                                          True).verdict
                        == "better" for _ in range(500)])

    assert power(needed) > 0.75 and power(needed // 2) < 0.5
    assert holm_corrected([replace(found, mean=0.1)], True)[0].needed is None         # more than anyone would train
    assert holm_corrected([replace(found, text_error=1.0, texts=9)], True)[0].needed is None  # seeds do not help
    assert holm_corrected([replace(found, mean=0.0, margin=1.5)], True)[0].needed < 10  # equivalent is a decision, too


@pytest.mark.parametrize("seeds,deviations", [(3, 8), (5, 5)])
def test_a_real_effect_is_found(seeds, deviations):
    rng = np.random.default_rng(0)
    found = [paired_difference(plain(rng.normal(size=seeds)), plain(deviations + rng.normal(size=seeds)), True)
             for _ in range(200)]
    assert np.mean([one.verdict == "better" for one in found]) > 0.95
    on_texts = [paired_difference(*texts(trial, seeds, 60, effect=-1.0), False).verdict for trial in range(50)]
    assert on_texts.count("better") >= 45


@pytest.mark.parametrize("higher,verdicts", [(True, ("better", "worse")), (False, ("worse", "better"))])
def test_which_side_is_better_depends_on_the_measure(higher, verdicts):
    low, high = plain([1.0, 1.1, 0.9]), plain([2.0, 2.2, 1.9])
    assert (paired_difference(low, high, higher).verdict, paired_difference(high, low, higher).verdict) == verdicts
    assert paired_difference(low, high, higher).mean == pytest.approx(-paired_difference(high, low, higher).mean)


def test_what_seeds_do_to_both_sides_cancels():
    common = np.array([-30.0, 4.0, 25.0])  # far larger than the difference
    a, b = plain(common), plain(common + [0.9, 1.0, 1.1])
    assert paired_difference(a, b, True).verdict == "better"
    assert paired_difference(a, b[::-1], True).verdict == "inconclusive"  # the same numbers, paired with the wrong ones


def test_what_texts_do_to_both_sides_cancels():
    a, b = texts(0, 3, 40, effect=0.2, by_seed=0.01, by_text=0.02)
    found = paired_difference(a, b, False)
    assert found.verdict == "worse" and found.high - found.low < 0.1  # documents differ by 2 bits per byte
    other = [Score(score.value, score.parts[::-1]) for score in b]  # as good, on other documents
    assert paired_difference(a, other, False).verdict == "inconclusive"


def test_texts_make_an_interval_wider_than_seeds_alone():
    a, b = texts(3, 3, 12, by_seed=0.001, by_text=0.5)
    seeds_alone = paired_difference([Score(one.value) for one in a], [Score(one.value) for one in b], False)
    found = paired_difference(a, b, False)
    assert found.high - found.low > 5 * (seeds_alone.high - seeds_alone.low)
    assert found.mean == pytest.approx(seeds_alone.mean)


def test_parts_missing_anywhere_leave_the_seeds_alone():
    a, b = texts(3, 3, 12, by_text=0.5)
    alone = paired_difference([Score(one.value) for one in a], [Score(one.value) for one in b], False)
    assert paired_difference(a, [*b[:2], Score(b[2].value)], False) == alone
    assert paired_difference(a, [*b[:2], Score(b[2].value, b[2].parts[1:])], False) == alone
    empty = ((0.0, 0.0),) * 4
    assert paired_difference([Score(one.value, empty) for one in a], [Score(one.value, empty) for one in b],
                             False) == alone


def test_a_value_may_be_its_parts_times_anything():
    """Accuracy in percent, say: the interval is in the value's own unit."""
    a, b = texts(5, 3, 20, effect=0.4)
    hundred = [[Score(100 * one.value, one.parts) for one in side] for side in (a, b)]
    small, large = paired_difference(a, b, False), paired_difference(*hundred, False)
    assert [large.low, large.mean, large.high] == pytest.approx([100 * small.low, 100 * small.mean, 100 * small.high])


def test_what_no_example_got_right_stays_nought():
    right = [Score(0.5, ((1, 1), (0, 1), (1, 1), (0, 1)))] * 3
    wrong = [Score(0.0, ((0, 1),) * 4)] * 3
    found = paired_difference(right, wrong, True)
    assert found.mean == -0.5 and found.low < -0.5 < found.high


def test_texts_without_anything_change_nothing():
    a, b = texts(5, 3, 20)
    padded = [[Score(one.value, (*one.parts, (0.0, 0.0))) for one in side] for side in (a, b)]
    assert paired_difference(*padded, False) == paired_difference(a, b, False)


def test_one_seed_claims_no_interval():
    assert paired_difference(plain([1.0]), plain([3.0]), True) == Difference(2.0, None, None, "one seed", 1)
    a, b = texts(0, 1, 40, effect=5.0)
    assert paired_difference(a, b, True).verdict == "one seed"


def test_the_same_model_twice():
    a, _ = texts(0, 3, 10)
    assert paired_difference(a, a, False, identical=True) == Difference(0.0, 0.0, 0.0, "same bytes", 3)
    assert paired_difference(a[:1], a[:1], False, identical=True).verdict == "same bytes"
    assert paired_difference(a, a, False).verdict == "inconclusive" and paired_difference(a, a, False).p == 1.0
