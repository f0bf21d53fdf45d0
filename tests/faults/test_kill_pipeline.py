"""A pipeline that is killed in every stage, during interpolation and during an ablation resumes to the same bytes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from commands import has_checkpoint
from commands import start_unreported as start
from commands import stemma_unreported as stemma
from toy_pipeline import four_stages, write_data, write_plan


def files(run: Path) -> dict[str, bytes]:
    names = ("model.safetensors", "dev.jsonl", "test.jsonl", "recipe.toml", "blend.json")
    return {str(file.relative_to(run)): file.read_bytes() for name in names for file in run.rglob(name)
            if "checkpoints" not in file.parts}


def deterministic_results(run: Path) -> list[object]:
    result = json.loads((run / "result.json").read_text())
    measures = [[stage[key] for key in ("general_loss", "own_before", "own_after", "metrics", "weights", "steps")]
                for stage in result["stages"]]
    return [measures, result["payoff"], result["contamination"], [entry["hash"] for entry in result["lineage"]]]


def test_a_killed_pipeline_resumes_to_the_same_bytes(tmp_path):
    write_data(tmp_path)
    stages = four_stages()
    stages["general"]["steps"] = stages["domain"]["steps"] = 16
    stages["domain"] |= {"replay": 0.2, "interpolate": [0.5, 1.0]}
    stages["task"]["epochs"] = 6
    stages["finetune"] |= {"epochs": 4, "interpolate": 0.5}
    command = ["pipeline", write_plan(tmp_path, stages, ablate=True, seeds=2), "--json"]
    uninterrupted, run = tmp_path / "uninterrupted", tmp_path / "killed"
    reference = stemma(*command, "--out", uninterrupted)
    assert reference.code == 0, reference.err

    def checkpoint_in(folder: str, step: int):
        return lambda: has_checkpoint(run / folder, step)

    conditions = [lambda: (run / "pipeline.toml").is_file(), checkpoint_in("stages/general", 4),
                  checkpoint_in("stages/domain", 4),
                  lambda: any((run / "stages/domain").glob(".blended*")) or (run / "stages/domain/model").is_dir(),
                  checkpoint_in("stages/task", 4), checkpoint_in("stages/finetune", 4),
                  checkpoint_in("ablation/finetune/from-general/seed-1", 4), lambda: (run / "measures.json").is_file()]
    for index, condition in enumerate(conditions):
        ended = start(*([*command, "--out", run] if index == 0 else ["resume", run])).kill_when(condition)
        assert ended.code == -signal.SIGKILL, ended.err
        assert not (run / "result.json").exists()
    resumed = stemma("resume", run, "--json")
    assert resumed.code == 0, resumed.err
    assert resumed.json["run"] == str(run) and len(resumed.json["stages"]) == 4
    assert files(run) == files(uninterrupted) and len(files(run)) > 20
    assert deterministic_results(run) == deterministic_results(uninterrupted)
    assert not [path for path in run.rglob("*") if path.name.endswith((".tmp", ".old"))]


def test_an_interrupted_pipeline_prints_the_resume_command(tmp_path):
    write_data(tmp_path)
    stages = four_stages()
    stages["domain"]["steps"] = 400
    run = tmp_path / "run"
    ended = start("pipeline", write_plan(tmp_path, stages), "--out", run).kill_when(
        lambda: any((run / "stages/domain/checkpoints").glob("step-*")), signal.SIGTERM)
    assert ended.code == 130 and f"`stemma resume {run}` goes on" in ended.err
