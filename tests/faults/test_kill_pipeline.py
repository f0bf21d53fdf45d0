"""A pipeline killed with -9 in the middle of every stage, of a mixture and of a trial resumes to the same bytes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from commands import start_unreported as start
from commands import stemma_unreported as stemma
from staged import four_stages, write_data, write_plan


def files(run: Path) -> dict[str, bytes]:
    names = ("model.safetensors", "dev.jsonl", "test.jsonl", "recipe.toml", "blend.json")
    return {str(file.relative_to(run)): file.read_bytes() for name in names for file in run.rglob(name)
            if "checkpoints" not in file.parts}


def told(run: Path) -> list[object]:
    result = json.loads((run / "result.json").read_text())
    measures = [[stage[key] for key in ("general_loss", "own_before", "own_after", "metrics", "weights", "steps")]
                for stage in result["stages"]]
    return [measures, result["payoff"], result["contamination"], [entry["hash"] for entry in result["lineage"]]]


def test_a_killed_pipeline_ends_in_the_same_bytes(tmp_path):
    write_data(tmp_path)
    stages = four_stages()
    stages["general"]["steps"] = stages["domain"]["steps"] = 16
    stages["domain"] |= {"replay": 0.2, "interpolate": [0.5, 1.0]}
    stages["task"]["epochs"] = 6
    stages["finetune"] |= {"epochs": 4, "interpolate": 0.5}
    command = ["pipeline", write_plan(tmp_path, stages, ablate=True, seeds=2), "--json"]
    whole, run = tmp_path / "whole", tmp_path / "killed"
    reference = stemma(*command, "--out", whole)
    assert reference.code == 0, reference.err

    def reached(place: str, step: int):
        return lambda: any(int(folder.name.removeprefix("step-")) >= step
                           for folder in (run / place / "checkpoints").glob("step-*"))

    moments = [lambda: (run / "pipeline.toml").is_file(), reached("stages/general", 4), reached("stages/domain", 4),
               lambda: any((run / "stages/domain").glob(".blended*")) or (run / "stages/domain/model").is_dir(),
               reached("stages/task", 4), reached("stages/finetune", 4),
               reached("ablation/finetune/from-general/seed-1", 4), lambda: (run / "measures.json").is_file()]
    for number, moment in enumerate(moments):
        ended = start(*([*command, "--out", run] if number == 0 else ["resume", run])).kill_when(moment)
        assert ended.code == -signal.SIGKILL, ended.err
        assert not (run / "result.json").exists()
    resumed = stemma("resume", run, "--json")
    assert resumed.code == 0, resumed.err
    assert resumed.json["run"] == str(run) and len(resumed.json["stages"]) == 4
    assert files(run) == files(whole) and len(files(run)) > 20
    assert told(run) == told(whole)
    assert not [path for path in run.rglob("*") if path.name.endswith((".tmp", ".old"))]


def test_an_interrupted_pipeline_says_how_to_go_on(tmp_path):
    write_data(tmp_path)
    stages = four_stages()
    stages["domain"]["steps"] = 400
    run = tmp_path / "run"
    ended = start("pipeline", write_plan(tmp_path, stages), "--out", run).kill_when(
        lambda: any((run / "stages/domain/checkpoints").glob("step-*")), signal.SIGTERM)
    assert ended.code == 130 and f"`stemma resume {run}` goes on" in ended.err
