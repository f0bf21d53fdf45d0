"""Power laws: fits recover simulated laws within their confidence bands."""

from __future__ import annotations

import numpy as np
import pytest

from stemma.lab.scaling_laws import fit_all, power_law

SIZES = (4e6, 1.1e7, 2.9e7, 8e7, 2e8, 6e8)


def law(x, factor: float, exponent: float, floor: float = 0.0):
    return floor + factor * np.asarray(x, float) ** -exponent


def simulated(sizes, seeds: int, noise: float, seed: int = 0, **truth):
    rng = np.random.default_rng(seed)
    return [(x, float(law(x, **truth) * np.exp(noise * rng.normal())), index)
            for x in sizes for index in range(seeds)]


def test_a_law_without_a_floor_is_recovered():
    fitted = power_law(simulated(SIZES[:3], 3, 0.0, factor=9.0, exponent=0.08))
    assert fitted["floor"] is None
    assert (fitted["factor"], fitted["exponent"]) == pytest.approx((9.0, 0.08))
    assert fitted["exponent_low"] == pytest.approx(0.08) == fitted["exponent_high"]
    assert len(fitted["points"]) == 9 and fitted["points"][0][2] == 0


def test_a_law_with_a_floor_is_recovered():
    fitted = power_law(simulated(SIZES, 3, 0.0, factor=2000.0, exponent=0.5, floor=1.7))
    assert fitted["floor"] == pytest.approx(1.7, rel=0.01)
    assert fitted["exponent"] == pytest.approx(0.5, rel=0.02)
    for x, low, middle, high in fitted["band"]:
        assert low <= middle * 1.0001 and middle <= high * 1.0001
        assert middle == pytest.approx(law(x, 2000.0, 0.5, 1.7), rel=1e-3)
        assert middle == pytest.approx(fitted["floor"] + fitted["factor"] * x ** -fitted["exponent"])


def test_no_floor_is_fitted_to_a_law_without_one():
    laws = [power_law(simulated(SIZES, 3, 0.01, seed, factor=9.0, exponent=0.08), draws=2) for seed in range(60)]
    assert sum(fitted["floor"] is not None for fitted in laws) <= 3


@pytest.mark.parametrize("sizes,truth", [(SIZES[:3], {"factor": 9.0, "exponent": 0.08}),
                                         (SIZES, {"factor": 2000.0, "exponent": 0.5, "floor": 1.7})])
@pytest.mark.parametrize("seeds", [3, 5])
def test_the_confidence_band_covers_the_true_law(sizes, truth, seeds):
    covered, exponents = [], []
    for seed in range(40):
        fitted = power_law(simulated(sizes, seeds, 0.02, seed, **truth), draws=100, seed=seed)
        covered += [low <= law(x, **truth) <= high for x, low, _, high in fitted["band"][::8]]
        exponents.append(fitted["exponent_low"] <= truth["exponent"] <= fitted["exponent_high"])
        assert all(low <= middle <= high for _, low, middle, high in fitted["band"])
    assert np.mean(covered) >= 0.88
    assert np.mean(exponents) >= 0.85


def test_noise_makes_the_band_wider():
    widths = []
    for noise in (0.002, 0.02):
        fitted = power_law(simulated(SIZES[:3], 3, noise, factor=9.0, exponent=0.08))
        assert fitted["exponent_low"] < fitted["exponent"] < fitted["exponent_high"]
        widths.append(fitted["exponent_high"] - fitted["exponent_low"])
    assert widths[1] > 5 * widths[0]


def test_constant_losses_have_exponent_zero():
    for sizes in (SIZES[:3], SIZES):
        fitted = power_law(simulated(sizes, 5, 0.01, factor=3.0, exponent=0.0))
        assert fitted["floor"] is None and abs(fitted["exponent"]) < 0.01
        assert fitted["exponent_low"] < 0 < fitted["exponent_high"]
        assert all(2.9 < low < high < 3.1 for _, low, _, high in fitted["band"])
    exact = power_law([(x, 2.0, seed) for x in SIZES for seed in range(2)])
    assert exact["floor"] is None and exact["exponent"] == pytest.approx(0, abs=1e-9)
    assert exact["factor"] == pytest.approx(2)


def test_rising_losses_have_a_negative_exponent():
    fitted = power_law(simulated(SIZES, 3, 0.001, factor=0.1, exponent=-0.05))
    assert fitted["floor"] is None and fitted["exponent"] == pytest.approx(-0.05, abs=0.002)


def test_fewer_than_three_sizes_or_invalid_values_give_no_law():
    assert power_law([]) is None
    assert power_law(simulated(SIZES[:2], 5, 0.01, factor=9.0, exponent=0.08)) is None
    assert power_law([(1.0, 2.0, 0), (2.0, 1.0, 0), (3.0, 0.0, 0)]) is None
    assert power_law([(0.0, 2.0, 0), (2.0, 1.0, 0), (3.0, 0.5, 0)]) is None


def test_one_seed_gives_no_band():
    fitted = power_law(simulated(SIZES[:3], 1, 0.01, factor=9.0, exponent=0.08))
    assert fitted["band"] == [] and fitted["exponent_low"] is None and fitted["exponent_high"] is None
    assert fitted["exponent"] == pytest.approx(0.08, abs=0.02)


def test_bootstrap_samples_without_all_sizes_are_discarded():
    points = [(x, 9 * x**-0.08, 0) for x in SIZES[:3]] + [(SIZES[0], 2.6, 1)]
    fitted = power_law(points)
    assert np.isfinite(fitted["band"]).all() and np.isfinite([fitted["exponent_low"], fitted["exponent_high"]]).all()


# Laws of an experiment -----------------------------------------------------------------------------------------------


def run(recipe: str, size: float, seed: int, final_loss: float) -> dict:
    """A run whose loss falls with the square root of its tokens, and ends at `final_loss`."""
    tokens = [1000 * k for k in range(1, 11)]
    curve = [[t, t * size, t / 10, final_loss * (t / 10_000) ** -0.5 * (1 + 0.001 * seed)] for t in tokens]
    return {"recipe": recipe, "size": str(size), "seed": seed, "parameters": size, "tokens": 10_000,
            "warmup_tokens": 2500, "flops": 10_000 * size, "y": 2 * final_loss * (1 + 0.001 * seed), "curve": curve}


def test_laws_are_fitted_against_parameters_tokens_and_flops():
    final_losses = {10.0: 1.0, 40.0: 0.8, 160.0: 0.64}
    rows = [run(recipe, size, seed, loss) for recipe in ("bert", "roberta") for size, loss in final_losses.items()
            for seed in range(3)]
    laws = {(fitted["recipe"], fitted["x"]): fitted for fitted in fit_all(rows, "pseudo_bits_per_byte")}
    assert list(laws) == [(recipe, x) for recipe in ("bert", "roberta") for x in ("parameters", "tokens", "flops")]
    sizes = laws["bert", "parameters"]
    assert sizes["measure"] == "pseudo_bits_per_byte" and len(sizes["points"]) == 9
    assert sizes["exponent"] == pytest.approx(-np.log(0.8) / np.log(4), rel=1e-3)
    tokens = laws["bert", "tokens"]
    assert tokens["measure"] == "validation_loss" and "largest size" in tokens["note"] and "warm-up" in tokens["note"]
    assert {point[0] for point in tokens["points"]} == {1000.0 * k for k in range(3, 11)}  # of one size, after warm-up
    assert tokens["exponent"] == pytest.approx(0.5, rel=1e-3)
    for seed in range(3):  # of several sizes, the lowest loss at each compute
        path = [(x, y) for x, y, point_seed in laws["bert", "flops"]["points"] if point_seed == seed]
        assert path == sorted(path) and [y for _, y in path] == sorted((y for _, y in path), reverse=True)
        assert 8 < len(path) < 24
    assert set(laws["bert", "flops"]) == {"recipe", "x", "points", "factor", "exponent", "floor", "exponent_low",
                                          "exponent_high", "band", "measure", "note"}


def test_a_single_size_has_no_law_against_parameters():
    laws = fit_all([run("bert", 10.0, 0, 1.0)], "bits_per_byte")
    assert [fitted["x"] for fitted in laws] == ["tokens", "flops"]
    assert all("size" not in fitted["note"] for fitted in laws)
    assert fit_all([], "bits_per_byte") == []
