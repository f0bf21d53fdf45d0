"""Paired differences between recipes: error rates of intervals and verdicts, in simulations with a known effect."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stemma.lab.experiment import Score
from stemma.lab.paired_differences import Difference, holm_corrected, paired_difference, sample_std
from stemma.tasks.metrics.student_t import student_t, two_sided_p


def scores_of(values) -> list[Score]:
    return [Score(float(value)) for value in values]


def simulated_scores(seed: int, seeds: int, units: int, effect: float = 0.0, by_seed: float = 0.1,
                     by_text: float = 0.3):
    """Bits per byte of two recipes on documents of different lengths. The variance between documents is far larger than
    the effect; documents and seeds have random effects on the difference between the recipes, too."""
    rng = np.random.default_rng(seed)
    size = rng.integers(200, 2000, units)
    difficulty, text_effect = rng.normal(5, 2, units), by_text * rng.normal(size=units)
    sides = []
    for side in (0.0, 1.0):
        sides.append([])
        for _ in range(seeds):
            noise = by_seed * rng.normal() + 0.02 * rng.normal(size=units)
            bits = size * (difficulty + side * (text_effect + effect) + noise)
            sides[-1].append(Score(bits.sum() / size.sum(), tuple(zip(bits.tolist(), size.tolist(), strict=True))))
    return sides


def test_the_sample_standard_deviation_of_one_value_is_none():
    assert sample_std([1.0, 3.0]) == pytest.approx(2**0.5)
    assert sample_std([4.0]) is None


def test_quantiles_of_students_t_equal_published_tables():
    for freedom, expected in {1: 12.706, 2: 4.303, 4: 2.776, 9: 2.262, 10: 2.228, 20: 2.086, 120: 1.980}.items():
        assert student_t(freedom) == pytest.approx(expected, abs=6e-4)
    for freedom, p, expected in [(1, 0.01, 63.657), (2, 0.001, 31.599), (3, 0.5, 0.7649), (5, 0.01, 4.032)]:
        assert student_t(freedom, p) == pytest.approx(expected, abs=6e-4)
        assert two_sided_p(expected, freedom) == pytest.approx(p, rel=1e-3)
    assert student_t(10**6) == pytest.approx(1.96, abs=0.013)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_false_positives_over_seeds_occur_in_5_percent(seeds):
    """The interval over seeds is exact: 5% of 2,500 simulations without an effect, within three standard errors."""
    rng = np.random.default_rng(seeds)
    differences = [paired_difference(scores_of(rng.normal(size=seeds)), scores_of(rng.normal(size=seeds)), True)
                   for _ in range(2500)]
    false_positives = np.mean([difference.verdict in ("better", "worse") for difference in differences])
    assert 0.037 <= false_positives <= 0.063
    assert all(difference.low <= difference.mean <= difference.high for difference in differences)
    assert all((difference.low <= 0 <= difference.high) == (difference.verdict == "inconclusive")
               for difference in differences)


@pytest.mark.parametrize("seeds,units,by_seed,by_text", [
    (2, 40, 0.1, 0.3), (3, 5, 0.1, 0.3),
    *(pytest.param(*case, marks=pytest.mark.slow)
      for case in [(2, 40, 0.0, 0.5), (3, 40, 0.0, 0.5), (5, 80, 0.1, 0.05), (5, 60, 0.1, 0.3)])])
def test_false_positives_over_seeds_and_texts_occur_in_at_most_5_percent(seeds, units, by_seed, by_text):
    """150 simulations; the bound is 5% and three standard errors."""
    verdicts = [paired_difference(*simulated_scores(trial, seeds, units, 0.0, by_seed, by_text), False).verdict
                for trial in range(150)]
    assert np.mean([verdict != "inconclusive" for verdict in verdicts]) <= 0.05 + 3 * (0.05 * 0.95 / 150) ** 0.5


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_family_wise_error_rate_is_at_most_5_percent(seeds):
    """Ten comparisons without an effect; without Holm's correction 40% of such reports have a false positive."""
    rng = np.random.default_rng(seeds)
    corrected, uncorrected = [], []
    for _ in range(300):
        differences = [paired_difference(scores_of(rng.normal(size=seeds)), scores_of(rng.normal(size=seeds)),
                                         True) for _ in range(10)]
        uncorrected.append(any(difference.verdict != "inconclusive" for difference in differences))
        corrected.append(any(difference.verdict != "inconclusive" for difference in holm_corrected(differences, True)))
    assert np.mean(uncorrected) > 0.3
    assert np.mean(corrected) <= 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5


def test_holm_correction_equals_a_computation_by_hand():
    """p values 0.01, 0.02, 0.04 become 3 x 0.01, 2 x 0.02 and 0.04: all below 5%. With 0.03 instead of 0.02, the
    second and all larger ones are above."""
    def differences(*p_values: float) -> list[Difference]:
        return [Difference(1.0, 0.0, 2.0, "", 3, p, seed_error=0.1) for p in p_values]

    corrected = holm_corrected(differences(0.04, 0.01, 0.02), True)
    assert [difference.p for difference in corrected] == pytest.approx([0.04, 0.03, 0.04])
    assert [difference.verdict for difference in corrected] == ["better"] * 3
    stricter = holm_corrected(differences(0.04, 0.01, 0.03), True)
    assert [difference.p for difference in stricter] == pytest.approx([0.06, 0.03, 0.06])
    assert [difference.verdict for difference in stricter] == ["inconclusive", "better", "inconclusive"]
    assert {difference.comparisons for difference in stricter} == {3}
    untested = [Difference(0.0, 0.0, 0.0, "same bytes", 3), Difference(1.0, None, None, "one seed", 1)]
    assert holm_corrected([*untested, *differences(0.04)], True)[:2] == untested  # not counted as comparisons
    assert holm_corrected([*untested, *differences(0.04)], True)[2].verdict == "better"


def test_the_interval_at_the_p_value_ends_at_zero():
    difference = paired_difference(scores_of([0.0, 0.0, 0.0]), scores_of([0.9, 1.0, 1.1]), True)
    assert difference.p == pytest.approx(two_sided_p(17.3205, 2), rel=1e-4)  # t = 1 / (0.1 / sqrt(3))
    assert abs(difference.mean) == pytest.approx(difference.half_width(difference.p), rel=1e-6)


def test_a_difference_is_equivalent_only_if_its_interval_is_within_the_margin():
    a, b = scores_of([1.0, 1.0, 1.0]), scores_of([1.001, 0.999, 1.0])  # half-width 0.0025
    assert paired_difference(a, b, True).verdict == "inconclusive"  # no margin
    assert paired_difference(a, b, True, margin=0.003).verdict == "equivalent"
    assert paired_difference(a, b, True, margin=0.002).verdict == "inconclusive"
    wide = scores_of([3.0, -1.0, 1.0])  # the same mean
    assert paired_difference(a, wide, True, margin=0.003).verdict == "inconclusive"
    several = holm_corrected([paired_difference(a, b, True, margin=0.003)] * 10, True)  # stricter for ten
    assert {difference.verdict for difference in several} == {"inconclusive"}
    # small, but significant
    assert paired_difference(a, scores_of([1.002, 1.0021, 1.0019]), True, margin=0.1).verdict == "better"


def test_the_needed_seeds_give_80_percent_power():
    """With the needed number of seeds 80% of repetitions are significant; with half as many, fewer than half are."""
    rng = np.random.default_rng(1)
    effect, noise = 1.0, 1.0
    difference = Difference(effect, None, None, "", 3, 0.2, seed_error=noise / 3**0.5)
    needed = holm_corrected([difference], True)[0].needed
    assert needed == 10

    def power(seeds: int) -> float:
        return np.mean([paired_difference(scores_of([0.0] * seeds), scores_of(effect + noise * rng.normal(size=seeds)),
                                          True).verdict
                        == "better" for _ in range(500)])

    assert power(needed) > 0.75 and power(needed // 2) < 0.5
    assert holm_corrected([replace(difference, mean=0.1)], True)[0].needed is None  # more than 100 seeds
    assert holm_corrected([replace(difference, text_error=1.0, texts=9)], True)[0].needed is None  # seeds do not help
    assert holm_corrected([replace(difference, mean=0.0, margin=1.5)], True)[0].needed < 10  # enough for "equivalent"


@pytest.mark.parametrize("seeds,deviations", [(3, 8), (5, 5)])
def test_a_large_effect_is_significant(seeds, deviations):
    rng = np.random.default_rng(0)
    verdicts = [paired_difference(scores_of(rng.normal(size=seeds)), scores_of(deviations + rng.normal(size=seeds)),
                                  True).verdict for _ in range(200)]
    assert verdicts.count("better") > 0.95 * 200
    on_texts = [paired_difference(*simulated_scores(trial, seeds, 60, effect=-1.0), False).verdict
                for trial in range(50)]
    assert on_texts.count("better") >= 45


@pytest.mark.parametrize("higher,verdicts", [(True, ("better", "worse")), (False, ("worse", "better"))])
def test_which_side_is_better_depends_on_the_measure(higher, verdicts):
    low, high = scores_of([1.0, 1.1, 0.9]), scores_of([2.0, 2.2, 1.9])
    assert (paired_difference(low, high, higher).verdict, paired_difference(high, low, higher).verdict) == verdicts
    assert paired_difference(low, high, higher).mean == pytest.approx(-paired_difference(high, low, higher).mean)


def test_effects_of_a_seed_on_both_recipes_cancel():
    common = np.array([-30.0, 4.0, 25.0])  # far larger than the difference
    a, b = scores_of(common), scores_of(common + [0.9, 1.0, 1.1])
    assert paired_difference(a, b, True).verdict == "better"
    assert paired_difference(a, b[::-1], True).verdict == "inconclusive"  # the same numbers, paired with other seeds


def test_effects_of_a_text_on_both_recipes_cancel():
    a, b = simulated_scores(0, 3, 40, effect=0.2, by_seed=0.01, by_text=0.02)
    difference = paired_difference(a, b, False)
    assert difference.verdict == "worse" and difference.high - difference.low < 0.1  # documents differ by 2
    other = [Score(score.value, score.parts[::-1]) for score in b]  # the same scores, on other documents
    assert paired_difference(a, other, False).verdict == "inconclusive"


def test_texts_make_an_interval_wider_than_seeds_alone():
    a, b = simulated_scores(3, 3, 12, by_seed=0.001, by_text=0.5)
    seeds_alone = paired_difference([Score(score.value) for score in a], [Score(score.value) for score in b], False)
    difference = paired_difference(a, b, False)
    assert difference.high - difference.low > 5 * (seeds_alone.high - seeds_alone.low)
    assert difference.mean == pytest.approx(seeds_alone.mean)


def test_without_scores_per_text_only_seeds_are_used():
    a, b = simulated_scores(3, 3, 12, by_text=0.5)
    by_seeds = paired_difference([Score(score.value) for score in a], [Score(score.value) for score in b], False)
    assert paired_difference(a, [*b[:2], Score(b[2].value)], False) == by_seeds
    assert paired_difference(a, [*b[:2], Score(b[2].value, b[2].parts[1:])], False) == by_seeds
    empty = ((0.0, 0.0),) * 4
    assert paired_difference([Score(score.value, empty) for score in a], [Score(score.value, empty) for score in b],
                             False) == by_seeds


def test_a_score_may_be_scaled_against_its_parts():
    """For example accuracy in percent: the interval has the unit of the score."""
    a, b = simulated_scores(5, 3, 20, effect=0.4)
    percent = [[Score(100 * score.value, score.parts) for score in side] for side in (a, b)]
    small, large = paired_difference(a, b, False), paired_difference(*percent, False)
    assert [large.low, large.mean, large.high] == pytest.approx([100 * small.low, 100 * small.mean, 100 * small.high])


def test_a_score_of_zero_is_compared_by_its_parts():
    half_correct = [Score(0.5, ((1, 1), (0, 1), (1, 1), (0, 1)))] * 3
    none_correct = [Score(0.0, ((0, 1),) * 4)] * 3
    difference = paired_difference(half_correct, none_correct, True)
    assert difference.mean == -0.5 and difference.low < -0.5 < difference.high


def test_empty_texts_change_nothing():
    a, b = simulated_scores(5, 3, 20)
    padded = [[Score(score.value, (*score.parts, (0.0, 0.0))) for score in side] for side in (a, b)]
    assert paired_difference(*padded, False) == paired_difference(a, b, False)


def test_one_seed_gives_no_interval():
    assert paired_difference(scores_of([1.0]), scores_of([3.0]), True) == Difference(2.0, None, None, "one seed", 1)
    a, b = simulated_scores(0, 1, 40, effect=5.0)
    assert paired_difference(a, b, True).verdict == "one seed"


def test_identical_models_have_no_difference():
    a, _ = simulated_scores(0, 3, 10)
    assert paired_difference(a, a, False, identical=True) == Difference(0.0, 0.0, 0.0, "same bytes", 3)
    assert paired_difference(a[:1], a[:1], False, identical=True).verdict == "same bytes"
    assert paired_difference(a, a, False).verdict == "inconclusive" and paired_difference(a, a, False).p == 1.0
