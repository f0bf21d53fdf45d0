"""A fine-tune that is killed early, between two epochs or during scoring resumes to the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import toy_tasks
from commands import assert_killed_run_resumes_identically, has_checkpoint

CHANGES = ["training.checkpoint_every=4", "training.log_every=1", "training.batch_size=8", "network.dropout=0.1"]
STEPS = 28  # an epoch has 12 steps


def files(run: Path) -> list[bytes]:
    names = ("model/model.safetensors", "model/tasks.json", "model/config.json", "dev.jsonl", "test.jsonl",
             "recipe.toml")
    return [(run / name).read_bytes() for name in names]


@pytest.mark.parametrize("kind", ["classify", "qa", "tag"])
def test_a_killed_fine_tune_resumes_to_the_same_bytes_and_scores(tmp_path, kind):
    toy_tasks.save_model(tmp_path / "model")
    sets = toy_tasks.write_sets(tmp_path, kind, 96, 24, 24)
    command = ["finetune", kind, "--model", tmp_path / "model", *(word for part, file in sets.items() for word in
               (f"--{part}", file)), "--steps", STEPS, "--seed", 5, *CHANGES, "--json"]
    uninterrupted, run = tmp_path / "uninterrupted", tmp_path / "killed"
    conditions = [lambda: (run / "run.json").is_file(), lambda: has_checkpoint(run, 8), lambda: has_checkpoint(run, 16),
               lambda: '"prediction"' in (run / "dev.jsonl").read_text() or (run / "model").is_dir()]
    resumed = assert_killed_run_resumes_identically(command, uninterrupted, run, conditions, list(sets.values()), files)
    assert resumed.json["steps"] == STEPS
