"""The learning-rate range test of fine-tuning (--find-rate)."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import toy_pairs
import toy_tasks

import stemma
from stemma.cli import main
from stemma.errors import Interrupted, UserError
from stemma.tasks.runs import find_rate as module
from stemma.tasks.runs import finetune_run
from stemma.tasks.runs.common import resume
from stemma.tasks.runs.find_rate import FILE, HIGHEST, LOWEST, MIN_STEPS, RangeTest, search_steps
from stemma.tasks.runs.finetune import TaskArguments, finetune
from stemma.tasks.runs.seq2seq import finetune_seq2seq
from stemma.tasks.runs.seq2seq_data import data_from_cli
from stemma.tasks.runs.sweep import Sweep
from stemma.training.gradient_descent import GradientDescent

QUICK = ["training.batch_size=16", "training.threads=1"]


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    return toy_tasks.write_sets(tmp_path_factory.mktemp("sets"), "classify", train=480, dev=16)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return toy_tasks.save_model(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, start, sets):
    run = tmp_path_factory.mktemp("finished") / "run"
    return run, tuned(start, sets, run)


def tuned(model, sets, out, *changes, **options):
    return finetune(TaskArguments("classify", sets), model, out, changes=[*QUICK, *changes],
                    **{"steps": 120, "find_rate": True, **options})


def curve(loss, rates=None):
    rates = np.geomspace(1e-5, 1, 100) if rates is None else rates
    return RangeTest([float(rate) for rate in rates], [float(loss(math.log10(rate))) for rate in rates], False)


# --- the choice


@pytest.mark.parametrize("seed", range(3))
def test_the_choice_lies_between_the_steepest_descent_and_the_minimum(seed):
    noise = np.random.default_rng(seed)
    # flat at 0.7, falls around 1e-3, lowest at 1e-2, then rises steeply
    test = curve(lambda x: 0.7 - 0.5 / (1 + 10 ** (-2 * (x + 3))) + 10 ** (x + 0.5) + 0.03 * noise.standard_normal())
    assert 6e-4 < test.best_rate() < 1.5e-2


def test_the_choice_moves_with_the_curve():
    rates = [curve(lambda x, at=at: 0.7 - 0.5 / (1 + 10 ** (-2 * (x - at))) + 10 ** (x - at - 2.5)).best_rate()
             for at in (-4, -3)]
    assert rates[1] / rates[0] == pytest.approx(10, rel=0.2)


def test_there_is_no_choice_if_the_loss_never_falls():
    assert curve(lambda x: 0.7).best_rate() is None
    assert curve(lambda x: 0.7 + 10 ** (x + 1)).best_rate() is None


def noisy_curve(drop: float, steps: int, seed: int) -> RangeTest:
    """Losses of batches with a standard deviation of 0.05: flat, falls by `drop` around 1e-3, and rises."""
    noise = np.random.default_rng(seed)
    return curve(lambda x: 0.7 - drop / (1 + 10 ** (-2 * (x + 3))) + (10 ** (x + 0.5) if drop else 0) +
                 0.05 * noise.standard_normal(), np.geomspace(1e-5, 1, steps))


@pytest.mark.parametrize("steps", [20, 30, 100])
def test_noise_is_no_fall(steps):
    """The smoothed losses of such batches fall by more than 2% in most curves."""
    flat = [noisy_curve(0.0, steps, seed) for seed in range(200)]
    doubts = [test.doubt() for test in flat]
    assert sum(doubt is None for doubt in doubts) < 0.1 * len(flat)
    assert sum("within the noise of its batches" in (doubt or "") for doubt in doubts) > 0.5 * len(flat)
    assert all((test.best_rate() is None) == (doubt is not None) for test, doubt in zip(flat, doubts, strict=True))
    falling = [noisy_curve(0.4, steps, seed) for seed in range(200)]
    assert sum(test.doubt() is None for test in falling) > 0.95 * len(falling)


def test_the_doubt_says_how_much_the_loss_fell():
    assert curve(lambda x: 0.7 + 10 ** (x + 1)).doubt() == "the loss did not fall at any learning rate"
    assert curve(lambda x: 0.7 - 0.002 * (x + 5)).doubt() == "the loss fell by only 1.4%"
    assert RangeTest([1e-5, 1e-4], [0.7, math.inf], True).doubt() == "the loss diverged in the first steps"


def test_smoothing_averages_neighbouring_rates_only():
    smoothed = curve(lambda x: 1.0 if x < -2.5 else 0.0).smoothed()
    assert smoothed[0] == pytest.approx(1) and smoothed[-1] == pytest.approx(0, abs=1e-9)
    assert all(later <= earlier + 1e-12 for earlier, later in zip(smoothed, smoothed[1:], strict=False))


# --- in a run


def test_a_run_finds_a_rate_stores_the_curve_and_trains_with_it(finished):
    run, result = finished
    found = result["learning_rate_search"]
    assert found == json.loads((run / FILE).read_text())
    rates = [point["learning_rate"] for point in found["curve"]]
    assert MIN_STEPS / 2 < found["steps"] == len(rates) <= 60
    assert rates == sorted(rates) and rates[0] == pytest.approx(LOWEST * found["default"])
    assert rates[-1] <= HIGHEST * found["default"] * 1.001
    assert found["found"] and 1e-3 < found["learning_rate"] < 0.1
    stored = stemma.recipe(run / "recipe.toml")
    assert stored.settings.training.learning_rate == found["learning_rate"]
    assert stored.origin["training.learning_rate"] == "range test"
    assert "learning_rate" not in result["defaults"]


def test_the_test_leaves_the_weights_as_they_were(tmp_path, start, sets, finished):
    """The run equals one in which the rate is stated."""
    rate = finished[1]["learning_rate_search"]["learning_rate"]
    tuned(start, sets, tmp_path / "stated", f"training.learning_rate={rate}", find_rate=False)
    weights = "model/model.safetensors"
    assert (tmp_path / "stated" / weights).read_bytes() == (finished[0] / weights).read_bytes()


def test_a_run_stopped_during_the_test_repeats_it_exactly(tmp_path, start, sets, finished, monkeypatch):
    steps, train_step = [], GradientDescent.train_step

    def stop_at_the_fifth(self, *arguments):
        steps.append(1)
        if len(steps) == 5:
            raise KeyboardInterrupt
        return train_step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(GradientDescent, "train_step", stop_at_the_fifth)
        with pytest.raises(Interrupted):
            tuned(start, sets, tmp_path / "run")
    assert not (tmp_path / "run" / FILE).exists()
    assert resume(tmp_path / "run")["learning_rate_search"] == finished[1]["learning_rate_search"]


def test_a_resumed_run_does_not_repeat_the_test(tmp_path, start, sets, finished, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(finetune_run, "train_and_score", stop)
        with pytest.raises(Interrupted):
            tuned(start, sets, tmp_path / "run")
    monkeypatch.setattr(module, "range_test", stop)
    result = resume(tmp_path / "run")
    assert result["learning_rate_search"] == finished[1]["learning_rate_search"]
    weights = "model/model.safetensors"
    assert (tmp_path / "run" / weights).read_bytes() == (finished[0] / weights).read_bytes()


@pytest.mark.parametrize(("run", "epoch", "test"), [(math.inf, 1000, 100), (1000, 101, 100), (60, 80, 60), (3, 80, 20),
                                                    (math.inf, 40, 40), (1000, 5, 20)])
def test_the_test_is_short_and_reads_each_example_once(run, epoch, test):
    assert search_steps(run, epoch) == test


def test_a_generating_model_is_searched_too(tmp_path):
    files = {part: [str(toy_pairs.write_pairs(tmp_path / f"{part}.tsv", toy_pairs.pairs(size, seed)))]
             for seed, (part, size) in enumerate((("train", 64), ("dev", 8)))}
    model = toy_pairs.save_model(tmp_path / "model", "transformer")
    result = finetune_seq2seq(model, data_from_cli(files), tmp_path / "run", changes=["training.threads=1"], steps=2,
                              find_rate=True)
    found = result["learning_rate_search"]
    assert stemma.recipe(tmp_path / "run/recipe.toml").settings.training.learning_rate == found["learning_rate"]
    assert result["steps"] == 2 and result["defaults"].keys() == {"warmup", "reason"}
    with pytest.raises(UserError, match="--find-rate and training.learning_rate exclude each other"):
        finetune_seq2seq(model, data_from_cli(files), tmp_path / "again", changes=["training.learning_rate=1"],
                         find_rate=True)


def test_restarts_share_one_test(tmp_path, start, sets):
    result = tuned(start, sets, tmp_path / "run", trials=Sweep(restarts=2), steps=4)
    rate = result["learning_rate_search"]["learning_rate"]
    assert {trial["rate"] for trial in result["trials"]} == {rate}
    assert not any((tmp_path / "run/trials").rglob(FILE))


def test_a_frozen_network_is_searched_too(tmp_path, start, sets):
    found = finetune(TaskArguments("classify", sets, features="all"), start, tmp_path / "run", changes=QUICK, steps=2,
                     find_rate=True)["learning_rate_search"]
    assert found["default"] == 1e-3 and found["steps"] <= MIN_STEPS


def test_a_doubt_keeps_the_default_with_a_note(tmp_path, start, sets, monkeypatch, caplog):
    monkeypatch.setattr(module, "range_test", lambda *arguments: noisy_curve(0.0, 30, 1))
    found = tuned(start, sets, tmp_path / "run", steps=2)["learning_rate_search"]
    assert not found["found"] and found["learning_rate"] == found["default"]
    assert "which is within the noise of its batches, so the default of " in caplog.text


def test_the_verb_prints_the_curve_and_one_object(tmp_path, start, sets, capsys):
    arguments = ["finetune", "classify", "--model", str(start), "--train", str(sets["train"]), "--dev",
                 str(sets["dev"]), "--out", str(tmp_path / "run"), "--steps", "2", "--find-rate", "--json", *QUICK]
    assert main(arguments) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["learning_rate_search"]["curve"]
    assert "looking for the learning rate: at most 20 steps" in output.err and "learning rate    loss" in output.err


@pytest.mark.parametrize(("changes", "options", "message"), [
    (["training.learning_rate=1e-3"], {}, "--find-rate and training.learning_rate exclude each other"),
    (["finetuning.learning_rate=1e-3"], {}, "--find-rate and finetuning.learning_rate exclude each other"),
    ([], {"trials": Sweep((1e-3, 1e-4))}, "--rates and --find-rate exclude each other")])
def test_a_rate_is_given_in_one_way(tmp_path, start, sets, changes, options, message):
    with pytest.raises(UserError, match=f"{message}; give one of them"):
        tuned(start, sets, tmp_path / "run", *changes, **options)
    assert not (tmp_path / "run").exists()
