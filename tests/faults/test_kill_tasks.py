"""A fine-tune on examples killed with -9, early, between two epochs and while it is scored, ends in the same bytes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import toy_tasks
from commands import start, stemma

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
    reference = stemma(*command, "--out", whole)
    assert reference.code == 0, reference.err

    def reached(step: int) -> bool:
        return any(int(folder.name.removeprefix("step-")) >= step for folder in (run / "checkpoints").glob("step-*"))

    moments = [lambda: (run / "run.json").is_file(), lambda: reached(8), lambda: reached(16),
               lambda: '"prediction"' in (run / "dev.jsonl").read_text() or (run / "model").is_dir()]
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
