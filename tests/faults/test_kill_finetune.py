"""A fine-tune killed with -9, while it learns or while it is scored, resumes to the same bytes and the same scores."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from commands import start, stemma
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
    reference = stemma(*command, "--out", whole)
    assert reference.code == 0, reference.err

    def reached(step: int) -> bool:
        return any(int(folder.name.removeprefix("step-")) >= step for folder in (run / "checkpoints").glob("step-*"))

    moments = [lambda: (run / "run.json").is_file(), lambda: reached(8), lambda: (run / "model").is_dir()]
    for number, moment in enumerate(moments):
        ended = start(*([*command, "--out", run] if number == 0 else ["resume", run])).kill_when(moment)
        assert ended.code == -signal.SIGKILL, ended.err
        if number == 0:  # from now on the run needs its own folder only, and the model to start from
            for file in sets.values():
                file.unlink()
    assert not (run / "result.json").exists()
    resumed = stemma("resume", run, "--json")
    assert resumed.code == 0, resumed.err
    assert files(run) == files(whole)
    assert resumed.json["metrics"] == reference.json["metrics"] and resumed.json["steps"] == LAST
    assert not [path for path in run.rglob("*") if path.name.endswith((".tmp", ".old"))]
