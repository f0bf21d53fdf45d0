"""Several tasks at once, killed with -9 in either stage: resumed, they end in the same bytes and the same scores."""

from __future__ import annotations

import signal
from pathlib import Path

from commands import start_unreported as start
from commands import stemma_unreported as stemma
from toy_tasks import save_model, write_sets

PLAN = """
finetune = true
[training]
checkpoint_every = 4
log_every = 1
batch_size = 8
[tasks.first]
kind = "classify"
train = "classify-train.jsonl"
dev = "classify-dev.jsonl"
test = "classify-test.jsonl"
[tasks.second]
kind = "pair"
train = "pair-train.jsonl"
dev = "pair-dev.jsonl"
head = "san"
weight = 0.5
"""
LAST = 20


def files(run: Path) -> dict[str, bytes]:
    """Weights and answers of all three models; where a model came from is the run's own affair."""
    found = [path for path in run.rglob("*") if path.suffix in (".safetensors", ".jsonl") and path.name != "log.jsonl"
             and "checkpoints" not in path.parts]
    return {str(path.relative_to(run)): path.read_bytes() for path in found}


def test_a_killed_run_of_several_tasks_ends_in_the_same_bytes_and_scores(tmp_path):
    save_model(tmp_path / "model", "bert@tiny", "network.dropout=0.1")
    for kind, test in (("classify", 16), ("pair", 0)):
        write_sets(tmp_path, kind, 64, 16, test)
    (tmp_path / "plan.toml").write_text(PLAN)
    command = ["multitask", tmp_path / "plan.toml", "--model", tmp_path / "model", "--steps", LAST, "--seed", 3,
               "--json"]
    whole, run = tmp_path / "whole", tmp_path / "killed"
    reference = stemma(*command, "--out", whole)
    assert reference.code == 0, reference.err

    def reached(place: Path, step: int) -> bool:
        return any(int(folder.name.removeprefix("step-")) >= step for folder in (place / "checkpoints").glob("step-*"))

    moments = [lambda: (run / "run.json").is_file(), lambda: reached(run, 8), lambda: (run / "shared.json").is_file(),
               lambda: reached(run / "tasks" / "first", 8), lambda: (run / "tasks" / "second" / "run.json").is_file(),
               lambda: reached(run / "tasks" / "second", 12)]
    for number, moment in enumerate(moments):
        ended = start(*([*command, "--out", run] if number == 0 else ["resume", run])).kill_when(moment)
        assert ended.code == -signal.SIGKILL, ended.err
        if number == 0:  # from now on the run needs its own folder only, and the model to start from
            for file in [*tmp_path.glob("*.jsonl"), tmp_path / "plan.toml"]:
                file.unlink()
    assert not (run / "result.json").exists()
    resumed = stemma("resume", run, "--json")
    assert resumed.code == 0, resumed.err
    assert files(run) == files(whole) and len(files(run)) == 3 + 2 * (2 + 3)
    assert resumed.json["metrics"] == reference.json["metrics"]
    for name in ("first", "second"):
        assert resumed.json["finetuned"][name]["metrics"] == reference.json["finetuned"][name]["metrics"]
    assert resumed.json["steps"] == resumed.json["finetuned"]["second"]["steps"] == LAST
    assert not [path for path in run.rglob("*") if path.name.endswith((".tmp", ".old"))]
