"""A fine-tune killed with -9, while it learns or while it is scored, resumes to the same bytes and the same scores."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import ends_alike, reached
from toy_pairs import pairs, save_model, write_pairs

CHANGES = ["training.checkpoint_every=4", "training.log_every=1", "training.batch_size=4"]
LAST = 24


def files(run: Path) -> list[bytes]:
    return [(run / name).read_bytes() for name in ("model/model.safetensors", "model/directions.json", "dev.jsonl",
                                                   "test.jsonl", "recipe.toml")]


@pytest.mark.parametrize("name", ["t5", "unilm"])
def test_a_killed_fine_tune_ends_in_the_same_bytes_and_scores(tmp_path, name):
    save_model(tmp_path / "model", name, "network.dropout=0.1")
    every = list(dict.fromkeys(pairs(900, longest=3)))
    held = {"dev": every[:60], "test": every[60:120]}
    sets = {key: write_pairs(tmp_path / f"{key}.tsv", made) for key, made in {"train": every[120:], **held}.items()}
    command = ["finetune", "seq2seq", "--model", tmp_path / "model", *(word for key in sets for word in
               (f"--{key}", sets[key])), "--steps", LAST, "--beams", 2, "--seed", 5, *CHANGES, "--json"]
    whole, run = tmp_path / "whole", tmp_path / "killed"
    moments = [lambda: (run / "run.json").is_file(), lambda: reached(run, 8), lambda: (run / "model").is_dir()]
    resumed = ends_alike(command, whole, run, moments, list(sets.values()), files)
    assert resumed.json["steps"] == LAST
