"""Sweeps: each trial is an ordinary run, the best is kept, and mean and standard deviation are reported."""

from __future__ import annotations

import json

import numpy as np
import pytest
import toy_tasks
from commands import stemma as command
from conftest import SEED, captured_log_messages

import stemma
from stemma.errors import UserError
from stemma.lab.report.run_html import write_report
from stemma.tasks.runs import finetune_run
from stemma.tasks.runs.common import resume
from stemma.tasks.runs.finetune import TaskArguments, finetune
from stemma.tasks.runs.sweep import Sweep
from stemma.training.trainer import TrainingDivergedError

FIRST, SECOND = 4 + SEED, 5 + SEED  # the seeds of the trials


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return toy_tasks.save_model(tmp_path_factory.mktemp("start") / "model")


@pytest.fixture(scope="module")
def tried(tmp_path_factory, model):
    """(run, result, log messages) of a sweep over two learning rates and two seeds."""
    folder = tmp_path_factory.mktemp("tried")
    sets = toy_tasks.write_sets(folder, "classify", train=64, dev=32, test=24)
    with captured_log_messages() as messages:
        result = finetune(TaskArguments("classify", sets), model, folder / "run", epochs=8, seed=FIRST,
                          changes=["training.batch_size=16"], trials=Sweep((1e-4, 5e-3), 2, ensemble=True))
    return folder / "run", result, messages


def test_every_learning_rate_runs_with_every_seed_and_the_best_is_kept(tried):
    run, result, messages = tried
    names = [f"rate-{rate}-seed-{seed}" for rate in ("0.0001", "0.005") for seed in (FIRST, SECOND)]
    assert [trial["trial"] for trial in result["trials"]] == names
    assert sorted(folder.name for folder in (run / "trials").iterdir()) == names
    means = {}
    for rate in (1e-4, 5e-3):
        scores = [trial["metrics"]["dev"]["accuracy"] for trial in result["trials"] if trial["rate"] == rate]
        summary = next(line for line in result["rates"] if line["rate"] == rate)["dev"]["accuracy"]
        assert summary == {"mean": pytest.approx(np.mean(scores)), "spread": pytest.approx(np.std(scores, ddof=1)),
                           "best": max(scores)}
        means[rate] = np.mean(scores)
    assert means[5e-3] > means[1e-4]  # so there is something to choose
    selected = result["chosen"]
    assert selected["rate"] == 5e-3
    best = next(trial for trial in result["trials"] if trial["trial"] == selected["trial"])
    assert best["metrics"] == result["metrics"]
    assert best["metrics"]["dev"]["accuracy"] == max(t["metrics"]["dev"]["accuracy"] for t in result["trials"][2:])
    for file in ("model/model.safetensors", "dev.jsonl", "test.jsonl", "recipe.toml", "log.jsonl"):
        assert (run / file).read_bytes() == (run / "trials" / selected["trial"] / file).read_bytes()
    assert stemma.load(run).task_config().labels == ("bad", "good")
    assert json.loads((run / "result.json").read_text()) == result
    assert any("2 seeds" in text and "±" in text for text in messages)
    assert not list(run.rglob("step-*"))  # of a finished trial the model is enough
    write_report(run)
    assert "--rates 0.0001,0.005 --restarts 2 --ensemble" in (run / "report.html").read_text()


def test_a_trial_equals_a_single_run(tmp_path, tried, model):
    run, result, _ = tried
    sets = {part: toy_tasks.write_rows(tmp_path / f"{part}.jsonl", [
        {"text": line["texts"][0], "label": line["label"]} for line in
        map(json.loads, (run / f"{part}.jsonl").read_text().splitlines())]) for part in ("train", "dev", "test")}
    alone = finetune(TaskArguments("classify", sets), model, tmp_path / "alone", epochs=8, seed=SECOND,
                     changes=["training.batch_size=16", "training.learning_rate=5e-3"])
    assert alone["metrics"] == result["trials"][3]["metrics"]
    assert (tmp_path / "alone/model/model.safetensors").read_bytes() == \
        (run / f"trials/rate-0.005-seed-{SECOND}/model/model.safetensors").read_bytes()


def test_an_ensemble_averages_logits(tried):
    run, result, _ = tried
    lines = [json.loads(line) for line in (run / "ensemble-dev.jsonl").read_text().splitlines()]
    members = [[json.loads(line)["prediction"] for line in
                (run / f"trials/rate-0.005-seed-{seed}/dev.jsonl").read_text().splitlines()]
               for seed in (FIRST, SECOND)]
    right = 0
    for line, *logits in zip(lines, *members, strict=True):
        # of two classes, the difference of logits is that of log chances
        margin = np.mean([np.log(one["scores"]["good"]) - np.log(one["scores"]["bad"]) for one in logits])
        assert line["prediction"]["scores"]["good"] == pytest.approx(1 / (1 + np.exp(-margin)), abs=1e-4)
        right += line["prediction"]["label"] == line["label"]
    assert result["ensemble"]["members"] == 2
    assert result["ensemble"]["dev"]["accuracy"] == pytest.approx(right / len(lines))
    assert result["ensemble"]["test"]["examples"] == 24


def test_a_finished_sweep_repeats_nothing(tried, caplog):
    run, result, _ = tried
    assert resume(run) == result
    assert caplog.messages == [f"{run} is finished; nothing to do."]


def test_finished_trials_are_not_repeated(tmp_path, model, monkeypatch):
    sets = toy_tasks.write_sets(tmp_path, "classify", train=32, dev=16)
    begun: list[str] = []
    work = finetune_run.run_to_end

    def failing(run, show):
        begun.append(run.name)
        if len(begun) == 2:
            raise UserError("the disk is full")
        return work(run, show)

    monkeypatch.setattr(finetune_run, "run_to_end", failing)
    with pytest.raises(UserError, match="disk is full"):
        finetune(TaskArguments("classify", sets), model, tmp_path / "run", epochs=1, trials=Sweep((), 3))
    rate = begun[0].split("-seed-")[0]
    assert (tmp_path / "run/trials" / begun[0] / "result.json").is_file()  # what was trained is still there
    result = resume(tmp_path / "run")
    assert begun == [f"{rate}-seed-0", f"{rate}-seed-1", f"{rate}-seed-1", f"{rate}-seed-2"]
    assert len(result["trials"]) == 3 and "ensemble" not in result


def test_a_diverging_learning_rate_loses(tmp_path, model, monkeypatch):
    sets = toy_tasks.write_sets(tmp_path, "classify", train=32, dev=16)
    work = finetune_run.run_to_end

    def running_away(run, show):
        if run.name == "rate-0.01-seed-1" or gone == "all":
            raise TrainingDivergedError("the loss is not a number")
        return work(run, show)

    monkeypatch.setattr(finetune_run, "run_to_end", running_away)
    gone = "one"
    result = finetune(TaskArguments("classify", sets), model, tmp_path / "run", epochs=1, trials=Sweep((1e-6, 1e-2), 2))
    assert result["trials"][3] == {"trial": "rate-0.01-seed-1", "rate": 1e-2, "seed": 1, "diverged": True}
    assert result["chosen"]["rate"] == 1e-6
    gone = "all"
    with pytest.raises(UserError, match="diverged in all 2 trials"):
        finetune(TaskArguments("classify", sets), model, tmp_path / "none", epochs=1, trials=Sweep((), 2))
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("options, messages", [
    (["--rates", "1e-5,fast"], "write numbers with commas"), (["--rates", "1e-5"], "training.learning_rate=1e-05"),
    (["--rates", "1e-5,1e-5"], "several different learning rates"), (["--rates", "0,1e-5"], "greater than 0"),
    (["--restarts", "0"], "must be 1 or more"), (["--ensemble"], "add --restarts"),
    (["--rates", "1e-5,2e-5", "training.learning_rate=1e-4"], "exclude each other"),
    (["--layers", "last5"], "choose all, last4"), (["--class-weights", "1"], "there are 2 classes: bad, good")])
def test_invalid_options_are_rejected_before_any_output(tmp_path, model, options, messages):
    sets = toy_tasks.write_sets(tmp_path, "classify", train=8, dev=8)
    done = command("finetune", "classify", "--model", model, "--train", sets["train"], "--dev", sets["dev"], "--out",
                   tmp_path / "run", *options, "--json")
    assert done.code == 2 and messages in done.json["error"]
    assert not (tmp_path / "run").exists()
