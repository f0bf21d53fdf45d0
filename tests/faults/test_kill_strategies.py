"""Killed fine-tunes with gradual unfreezing, early stopping or several trials resume to the same bytes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import toy_tasks
from commands import start_unreported as start
from commands import stemma_unreported as stemma

CHANGES = [*toy_tasks.FAST, "training.checkpoint_every=3", "training.validate_every=2", "training.log_every=1"]
VARIANTS = {
    "gradual unfreezing": ["training.unfreeze=4", "training.layer_decay=0.5", "training.fresh=1"],
    "early stopping": ["training.patience=4", "training.frozen=1"],
}


def without_times(result: dict) -> dict:
    values = {key: value for key, value in result.items() if "second" not in key and key != "run"}
    values["trials"] = [{key: value for key, value in trial.items() if key != "seconds"}
                        for trial in values.get("trials", [])]
    for scores in values.get("baseline", {}).values():
        scores["fit"].pop("seconds")
    return values


def assert_same(run: Path, uninterrupted: Path) -> None:
    for name in ("model/model.safetensors", "model/tasks.json", "dev.jsonl", "recipe.toml"):
        assert (run / name).read_bytes() == (uninterrupted / name).read_bytes(), name
    result, expected = (without_times(json.loads((folder / "result.json").read_text()))
                        for folder in (run, uninterrupted))
    assert result == expected
    assert not [path for path in run.rglob("*") if path.name.endswith((".tmp", ".old"))]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_killed_fine_tune_with_unfreezing_or_early_stopping_resumes_to_the_same_bytes(tmp_path, variant):
    model, sets = toy_tasks.save_model(tmp_path / "model"), toy_tasks.write_sets(tmp_path, "classify", train=64, dev=16)
    command = ["finetune", "classify", "--model", model, "--train", sets["train"], "--dev", sets["dev"], "--epochs", 5,
               *CHANGES, *VARIANTS[variant]]
    uninterrupted, run = tmp_path / "uninterrupted", tmp_path / "run"
    assert stemma(*command, "--out", uninterrupted).code == 0
    for index, step in enumerate((3, 6)):
        words = [*command, "--out", run] if index == 0 else ["resume", run]
        ended = start(*words).kill_when(lambda step=step: (run / f"checkpoints/step-{step}").is_dir())
        assert ended.code == -signal.SIGKILL, ended.err
    ended = stemma("resume", run)
    assert ended.code == 0, ended.err
    assert_same(run, uninterrupted)


def test_killed_trials_resume_and_finished_ones_are_not_repeated(tmp_path):
    model = toy_tasks.save_model(tmp_path / "model")
    sets = toy_tasks.write_sets(tmp_path, "classify", train=64, dev=16, test=16)
    command = ["finetune", "classify", "--model", model, *(word for part, file in sets.items() for word in
               (f"--{part}", file)), "--epochs", 2, "--rates", "1e-3,3e-3", "--restarts", 2, "--ensemble",
               "training.batch_size=16", "training.checkpoint_every=3"]
    uninterrupted, run = tmp_path / "uninterrupted", tmp_path / "run"
    assert stemma(*command, "--out", uninterrupted).code == 0
    first, last = run / "trials/rate-0.001-seed-0", run / "trials/rate-0.003-seed-1"
    conditions = [lambda: (first / "checkpoints/step-3").is_dir(), lambda: (first / "result.json").is_file(),
                  lambda: (last / "checkpoints").is_dir(), lambda: (run / "ensemble-dev.jsonl").is_file()]
    for index, condition in enumerate(conditions):
        ended = start(*([*command, "--out", run] if index == 0 else ["resume", run])).kill_when(condition)
        assert ended.code == -signal.SIGKILL, ended.err
        assert not (run / "result.json").exists()
    written = (first / "result.json").stat().st_mtime_ns
    ended = stemma("resume", run)
    assert ended.code == 0, ended.err
    assert (first / "result.json").stat().st_mtime_ns == written  # the finished trial is not repeated
    assert_same(run, uninterrupted)
    assert (run / "ensemble-test.jsonl").read_bytes() == (uninterrupted / "ensemble-test.jsonl").read_bytes()


def test_an_interrupted_search_prints_the_command_that_resumes_it(tmp_path):
    model, sets = toy_tasks.save_model(tmp_path / "model"), toy_tasks.write_sets(tmp_path, "classify", train=64, dev=16)
    run = tmp_path / "run"
    running = start("finetune", "classify", "--model", model, "--train", sets["train"], "--dev", sets["dev"], "--out",
                    run, "--epochs", 60, "--restarts", 2, *CHANGES)
    ended = running.kill_when(lambda: any(run.glob("trials/*/checkpoints/step-*")), signal.SIGTERM)
    assert ended.code == 130 and f"`stemma resume {run}` goes on" in ended.err
