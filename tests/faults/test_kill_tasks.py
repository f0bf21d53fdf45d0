"""A fine-tune on examples killed with -9, early, between two epochs and while it is scored, ends in the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import toy_tasks
from commands import ends_alike, reached

CHANGES = ["training.checkpoint_every=4", "training.log_every=1", "training.batch_size=8", "network.dropout=0.1"]
LAST = 28  # steps; an epoch is 12


def files(run: Path) -> list[bytes]:
    names = ("model/model.safetensors", "model/tasks.json", "model/config.json", "dev.jsonl", "test.jsonl",
             "recipe.toml")
    return [(run / name).read_bytes() for name in names]


@pytest.mark.parametrize("kind", ["classify", "qa", "tag"])
def test_a_killed_fine_tune_ends_in_the_same_bytes_and_scores(tmp_path, kind):
    toy_tasks.save_model(tmp_path / "model")
    sets = toy_tasks.write_sets(tmp_path, kind, 96, 24, 24)
    command = ["finetune", kind, "--model", tmp_path / "model", *(word for part, file in sets.items() for word in
               (f"--{part}", file)), "--steps", LAST, "--seed", 5, *CHANGES, "--json"]
    whole, run = tmp_path / "whole", tmp_path / "killed"
    moments = [lambda: (run / "run.json").is_file(), lambda: reached(run, 8), lambda: reached(run, 16),
               lambda: '"prediction"' in (run / "dev.jsonl").read_text() or (run / "model").is_dir()]
    resumed = ends_alike(command, whole, run, moments, list(sets.values()), files)
    assert resumed.json["steps"] == LAST
