"""A seq2seq fine-tune that is killed during training or scoring resumes to the same bytes and scores."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import assert_killed_run_resumes_identically, has_checkpoint
from toy_pairs import pairs, save_model, write_pairs

CHANGES = ["training.checkpoint_every=4", "training.log_every=1", "training.batch_size=4"]
STEPS = 24


def files(run: Path) -> list[bytes]:
    return [(run / name).read_bytes() for name in ("model/model.safetensors", "model/directions.json", "dev.jsonl",
                                                   "test.jsonl", "recipe.toml")]


@pytest.mark.parametrize("name", ["t5", "unilm"])
def test_a_killed_seq2seq_fine_tune_resumes_to_the_same_bytes_and_scores(tmp_path, name):
    save_model(tmp_path / "model", name, "network.dropout=0.1")
    examples = list(dict.fromkeys(pairs(900, longest=3)))
    held_out = {"dev": examples[:60], "test": examples[60:120]}
    splits = {"train": examples[120:], **held_out}
    sets = {key: write_pairs(tmp_path / f"{key}.tsv", split) for key, split in splits.items()}
    command = ["finetune", "seq2seq", "--model", tmp_path / "model", *(word for key in sets for word in
               (f"--{key}", sets[key])), "--steps", STEPS, "--beams", 2, "--seed", 5, *CHANGES, "--json"]
    uninterrupted, run = tmp_path / "uninterrupted", tmp_path / "killed"
    conditions = [lambda: (run / "run.json").is_file(), lambda: has_checkpoint(run, 8),
                  lambda: (run / "model").is_dir()]
    resumed = assert_killed_run_resumes_identically(command, uninterrupted, run, conditions, list(sets.values()), files)
    assert resumed.json["steps"] == STEPS
