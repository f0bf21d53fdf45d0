"""Power laws: what was planted is found, within the band that is claimed for it."""

from __future__ import annotations

import numpy as np
import pytest

from stemma.lab.scaling_laws import fit_all, power_law

SIZES = (4e6, 1.1e7, 2.9e7, 8e7, 2e8, 6e8)


def law(x, factor: float, exponent: float, floor: float = 0.0):
    return floor + factor * np.asarray(x, float) ** -exponent


def measured(sizes, seeds: int, noise: float, seed: int = 0, **truth):
    rng = np.random.default_rng(seed)
    return [(x, float(law(x, **truth) * np.exp(noise * rng.normal())), number)
            for x in sizes for number in range(seeds)]


def test_a_straight_law_is_found():
    found = power_law(measured(SIZES[:3], 3, 0.0, factor=9.0, exponent=0.08))
    assert found["floor"] is None
    assert (found["factor"], found["exponent"]) == pytest.approx((9.0, 0.08))
    assert found["exponent_low"] == pytest.approx(0.08) == found["exponent_high"]
    assert len(found["points"]) == 9 and found["points"][0][2] == 0


def test_a_law_with_a_floor_is_found():
    found = power_law(measured(SIZES, 3, 0.0, factor=2000.0, exponent=0.5, floor=1.7))
    assert found["floor"] == pytest.approx(1.7, rel=0.01)
    assert found["exponent"] == pytest.approx(0.5, rel=0.02)
    for x, low, middle, high in found["band"]:
        assert low <= middle * 1.0001 and middle <= high * 1.0001
        assert middle == pytest.approx(law(x, 2000.0, 0.5, 1.7), rel=1e-3)
        assert middle == pytest.approx(found["floor"] + found["factor"] * x ** -found["exponent"])


def test_a_straight_law_is_given_no_floor():
    found = [power_law(measured(SIZES, 3, 0.01, seed, factor=9.0, exponent=0.08), draws=2) for seed in range(60)]
    assert sum(one["floor"] is not None for one in found) <= 3


@pytest.mark.parametrize("sizes,truth", [(SIZES[:3], {"factor": 9.0, "exponent": 0.08}),
                                         (SIZES, {"factor": 2000.0, "exponent": 0.5, "floor": 1.7})])
@pytest.mark.parametrize("seeds", [3, 5])
def test_the_band_holds_what_was_planted(sizes, truth, seeds):
    inside, exponents = [], []
    for seed in range(40):
        found = power_law(measured(sizes, seeds, 0.02, seed, **truth), draws=100, seed=seed)
        inside += [low <= law(x, **truth) <= high for x, low, _, high in found["band"][::8]]
        exponents.append(found["exponent_low"] <= truth["exponent"] <= found["exponent_high"])
        assert all(low <= middle <= high for _, low, middle, high in found["band"])
    assert np.mean(inside) >= 0.88
    assert np.mean(exponents) >= 0.85


def test_noise_makes_the_band_wider():
    widths = []
    for noise in (0.002, 0.02):
        found = power_law(measured(SIZES[:3], 3, noise, factor=9.0, exponent=0.08))
        assert found["exponent_low"] < found["exponent"] < found["exponent_high"]
        widths.append(found["exponent_high"] - found["exponent_low"])
    assert widths[1] > 5 * widths[0]


def test_flat_data_have_no_slope():
    for sizes in (SIZES[:3], SIZES):
        found = power_law(measured(sizes, 5, 0.01, factor=3.0, exponent=0.0))
        assert found["floor"] is None and abs(found["exponent"]) < 0.01
        assert found["exponent_low"] < 0 < found["exponent_high"]
        assert all(2.9 < low < high < 3.1 for _, low, _, high in found["band"])
    exact = power_law([(x, 2.0, seed) for x in SIZES for seed in range(2)])
    assert exact["floor"] is None and exact["exponent"] == pytest.approx(0, abs=1e-9)
    assert exact["factor"] == pytest.approx(2)


def test_what_rises_has_a_negative_exponent():
    found = power_law(measured(SIZES, 3, 0.001, factor=0.1, exponent=-0.05))
    assert found["floor"] is None and found["exponent"] == pytest.approx(-0.05, abs=0.002)


def test_too_few_points_make_no_law():
    assert power_law([]) is None
    assert power_law(measured(SIZES[:2], 5, 0.01, factor=9.0, exponent=0.08)) is None
    assert power_law([(1.0, 2.0, 0), (2.0, 1.0, 0), (3.0, 0.0, 0)]) is None
    assert power_law([(0.0, 2.0, 0), (2.0, 1.0, 0), (3.0, 0.5, 0)]) is None


def test_one_seed_claims_no_band():
    found = power_law(measured(SIZES[:3], 1, 0.01, factor=9.0, exponent=0.08))
    assert found["band"] == [] and found["exponent_low"] is None and found["exponent_high"] is None
    assert found["exponent"] == pytest.approx(0.08, abs=0.02)


def test_seeds_that_lack_a_size_are_never_all_that_is_drawn():
    points = [(x, 9 * x**-0.08, 0) for x in SIZES[:3]] + [(SIZES[0], 2.6, 1)]
    found = power_law(points)
    assert np.isfinite(found["band"]).all() and np.isfinite([found["exponent_low"], found["exponent_high"]]).all()


# Laws of an experiment -----------------------------------------------------------------------------------------------


def run(recipe: str, size: float, seed: int, reached: float) -> dict:
    """A run whose loss falls with the square root of its tokens, from a height that its size decides."""
    tokens = [1000 * k for k in range(1, 11)]
    curve = [[t, t * size, t / 10, reached * (t / 10_000) ** -0.5 * (1 + 0.001 * seed)] for t in tokens]
    return {"recipe": recipe, "size": str(size), "seed": seed, "parameters": size, "tokens": 10_000,
            "warmup_tokens": 2500, "flops": 10_000 * size, "y": 2 * reached * (1 + 0.001 * seed), "curve": curve}


def test_laws_against_parameters_tokens_and_flops():
    heights = {10.0: 1.0, 40.0: 0.8, 160.0: 0.64}
    rows = [run(recipe, size, seed, height) for recipe in ("bert", "roberta") for size, height in heights.items()
            for seed in range(3)]
    found = {(one["recipe"], one["x"]): one for one in fit_all(rows, "pseudo_bits_per_byte")}
    assert list(found) == [(recipe, x) for recipe in ("bert", "roberta") for x in ("parameters", "tokens", "flops")]
    sizes = found["bert", "parameters"]
    assert sizes["measure"] == "pseudo_bits_per_byte" and len(sizes["points"]) == 9
    assert sizes["exponent"] == pytest.approx(-np.log(0.8) / np.log(4), rel=1e-3)
    tokens = found["bert", "tokens"]
    assert tokens["measure"] == "validation_loss" and "largest size" in tokens["note"] and "warm-up" in tokens["note"]
    assert {point[0] for point in tokens["points"]} == {1000.0 * k for k in range(3, 11)}  # of one size, warmed up
    assert tokens["exponent"] == pytest.approx(0.5, rel=1e-3)
    for seed in range(3):  # of several sizes, only what was best for its cost
        path = [(x, y) for x, y, number in found["bert", "flops"]["points"] if number == seed]
        assert path == sorted(path) and [y for _, y in path] == sorted((y for _, y in path), reverse=True)
        assert 8 < len(path) < 24
    assert set(found["bert", "flops"]) == {"recipe", "x", "points", "factor", "exponent", "floor", "exponent_low",
                                           "exponent_high", "band", "measure", "note"}


def test_a_single_size_has_curves_but_no_law_of_size():
    found = fit_all([run("bert", 10.0, 0, 1.0)], "bits_per_byte")
    assert [one["x"] for one in found] == ["tokens", "flops"]
    assert all("size" not in one["note"] for one in found)
    assert fit_all([], "bits_per_byte") == []
