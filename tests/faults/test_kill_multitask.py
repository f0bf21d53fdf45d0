"""A multi-task run that is killed in either stage resumes to the same bytes and scores."""

from __future__ import annotations

import signal
from pathlib import Path

from commands import has_checkpoint
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
STEPS = 20


def files(run: Path) -> dict[str, bytes]:
    """Weights and predictions of all three models. Other files contain the path of the run."""
    paths = [path for path in run.rglob("*") if path.suffix in (".safetensors", ".jsonl") and path.name != "log.jsonl"
              and "checkpoints" not in path.parts]
    return {str(path.relative_to(run)): path.read_bytes() for path in paths}


def test_a_killed_multitask_run_resumes_to_the_same_bytes_and_scores(tmp_path):
    save_model(tmp_path / "model", "bert@tiny", "network.dropout=0.1")
    for kind, test in (("classify", 16), ("pair", 0)):
        write_sets(tmp_path, kind, 64, 16, test)
    (tmp_path / "plan.toml").write_text(PLAN)
    command = ["multitask", tmp_path / "plan.toml", "--model", tmp_path / "model", "--steps", STEPS, "--seed", 3,
               "--json"]
    uninterrupted, run = tmp_path / "uninterrupted", tmp_path / "killed"
    reference = stemma(*command, "--out", uninterrupted)
    assert reference.code == 0, reference.err


    first, second = run / "tasks" / "first", run / "tasks" / "second"
    conditions = [lambda: (run / "run.json").is_file(), lambda: has_checkpoint(run, 8),
                  lambda: (run / "shared.json").is_file(), lambda: has_checkpoint(first, 8),
                  lambda: (second / "run.json").is_file(), lambda: has_checkpoint(second, 12)]
    for index, condition in enumerate(conditions):
        killed = start(*([*command, "--out", run] if index == 0 else ["resume", run])).kill_when(condition)
        assert killed.code == -signal.SIGKILL, killed.err
        if index == 0:  # from now on the run needs only its own folder and the initial model
            for file in [*tmp_path.glob("*.jsonl"), tmp_path / "plan.toml"]:
                file.unlink()
    assert not (run / "result.json").exists()
    resumed = stemma("resume", run, "--json")
    assert resumed.code == 0, resumed.err
    assert files(run) == files(uninterrupted) and len(files(run)) == 3 + 2 * (2 + 3)
    assert resumed.json["metrics"] == reference.json["metrics"]
    for name in ("first", "second"):
        assert resumed.json["finetuned"][name]["metrics"] == reference.json["finetuned"][name]["metrics"]
    assert resumed.json["steps"] == resumed.json["finetuned"]["second"]["steps"] == STEPS
    assert not [path for path in run.rglob("*") if path.name.endswith((".tmp", ".old"))]
