"""A pipeline from its plan to its report; a second run repeats only what changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import SEED, captured_log_messages
from toy_pipeline import four_stages, write_data, write_plan

import stemma
from stemma.errors import UserError
from stemma.tasks.pipeline.pipeline import pipeline
from stemma.tasks.pipeline.report import tables
from stemma.tasks.runs.common import resume


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> tuple[Path, dict, list[str]]:
    """A finished pipeline with replay, interpolation and ablation."""
    folder = tmp_path_factory.mktemp("pipeline")
    write_data(folder)
    stages = four_stages()
    stages["domain"] |= {"replay": 0.25, "interpolate": [0.5, 1.0]}
    stages["finetune"] |= {"interpolate": [0.3, 0.9]}
    plan = write_plan(folder, stages, ablate=True, seeds=2, seed=SEED)
    with captured_log_messages() as messages:
        result = pipeline(plan, folder / "run")
    return folder, result, messages


@pytest.fixture
def again(done, tmp_path) -> Path:
    """A copy of the finished pipeline."""
    shutil.copytree(done[0], tmp_path / "copy")
    text = (tmp_path / "copy/run/pipeline.toml").read_text()
    (tmp_path / "copy/run/pipeline.toml").write_text(text.replace(str(done[0]), str(tmp_path / "copy")))
    return tmp_path / "copy"


def weights(run: Path) -> dict[str, bytes]:
    return {str(file.relative_to(run)): file.read_bytes() for file in run.rglob("model.safetensors")
            if "past" not in file.parts}


def times(run: Path) -> dict[str, int]:
    return {str(file.relative_to(run)): file.stat().st_mtime_ns for file in run.rglob("*/model/model.safetensors")}


def test_every_stage_is_an_ordinary_run_that_starts_from_the_last(done):
    run = done[0] / "run"
    for name, steps in (("general", 8), ("domain", 8), ("finetune", 10)):
        assert json.loads((run / "stages" / name / "result.json").read_text())["steps"] == steps
    starts = {name: json.loads((run / "stages" / name / "run.json").read_text())["start"]
              for name in ("general", "domain", "task", "finetune")}
    assert starts == {"general": None, "domain": str(run / "stages/general"),
                      "task": str(run / "stages/domain/blended"), "finetune": str(run / "stages/task")}
    row = {stage["stage"]: stage for stage in done[1]["stages"]}
    assert row["task"]["tokens"] >= 3 * 300  # three epochs of forty sentences
    assert (run / "model/model.safetensors").read_bytes() == \
        (run / "stages/finetune/blended/model/model.safetensors").read_bytes()
    assert list(stemma.load(run).task_configs) == ["task"]


def test_the_result_describes_every_stage(done):
    _, result, messages = done
    row = {stage["stage"]: stage for stage in result["stages"]}
    assert all(stage["general_loss"] > 1 for stage in row.values())
    assert row["domain"]["forgotten"] == pytest.approx(row["domain"]["general_loss"] - row["general"]["general_loss"])
    assert row["general"]["own_before"] is None and row["task"]["own_after"] < row["task"]["own_before"]
    assert row["finetune"]["share"] in (0.3, 0.9) and row["domain"]["share"] in (0.5, 1.0)
    assert set(result["metrics"]) == {"dev", "test"} and row["finetune"]["metric"] == "accuracy"
    linear = row["finetune"]["baseline"]["linear"]
    assert linear["dev"].keys() == row["finetune"]["metrics"]["dev"].keys() and row["task"]["baseline"] is None
    head, rows = tables(result)["Stages"]
    assert rows[-1][head.index("linear baseline")] == f"{linear['dev']['accuracy']:.4f}"
    ablation = [json.loads(file.read_text()) for file in (done[0] / "run/ablation").rglob("result.json")]
    assert ablation and not any("baseline" in run for run in ablation)
    texts = {(entry["text"], entry["set"]) for entry in result["contamination"]}
    assert texts == {(text, part) for text in ("general", "domain", "task") for part in ("dev", "test")}
    assert not any("started at random" in text for text in messages)
    rows = result["payoff"]["finetune"]
    assert [entry["from"] for entry in rows] == ["general", "domain", "task"] and len(rows[0]["scores"]) == 2
    assert json.loads(json.dumps(result)) == result


def test_the_best_interpolation_on_dev_is_kept(done):
    run = done[0] / "run"
    facts = json.loads((run / "stages/finetune/blended/blend.json").read_text())
    scores = {float(share): score for share, score in facts["accuracy"].items()}
    assert scores[facts["share"]] == max(scores.values()) == facts["metrics"]["dev"]["accuracy"]
    losses = json.loads((run / "stages/domain/blended/blend.json").read_text())
    assert losses["loss"][str(losses["share"])] == min(losses["loss"].values())
    ends = [stemma.load(run / "stages" / name).network.state_dict() for name in ("general", "domain", "domain/blended")]
    name = "embedding.tokens.weight"
    assert torch.allclose(ends[2][name], torch.lerp(ends[0][name], ends[1][name], losses["share"]))


def test_replay_adds_a_quarter_of_general_text(done):
    folder = done[0]
    lines = (folder / "run/texts/domain-general.jsonl").read_text().splitlines()
    general = [json.loads(line)["text"] for line in lines]
    expected = len((folder / "domain.txt").read_text()) / 3
    assert sum(map(len, general[:-1])) < expected  # whole documents, and none when there is enough
    assert sum(map(len, general)) > 0.98 * expected  # blank lines between documents are not counted
    assert all(text in (folder / "general.txt").read_text() for text in general)
    assert len(json.loads((folder / "run/stages/domain/run.json").read_text())["text"]) == 2


def test_lineage_lists_files_stages_and_digests(done):
    from stemma.atomic_files import sha256

    folder, result, _ = done
    entries = {entry["stage"]: entry for entry in json.loads((folder / "run/lineage.json").read_text())["stages"]}
    assert list(entries.values()) == result["lineage"]
    assert entries["task"]["start"] == entries["domain"]["hash"] != entries["domain"]["trained"]
    assert entries["task"]["data"]["texts"] == {str(folder / "train.tsv"): sha256(folder / "train.tsv")}
    assert entries["domain"]["general"] == {str(folder / "general.txt"): sha256(folder / "general.txt")}
    report = (folder / "run/report.md").read_text()
    for part in ("| general |", "Gain of each stage: finetune", entries["task"]["hash"][:12], "contaminated",
                 sha256(folder / "train.tsv")[:16]):
        assert part in report


def test_an_unchanged_plan_repeats_nothing(done, again):
    before = times(again / "run")
    # the files lie elsewhere now, but hold the same; only what is unfinished would be started
    result = pipeline(again / "run/pipeline.toml", again / "run")
    after = times(again / "run")
    assert {name: after[name] for name in before if name != "model/model.safetensors"} \
        == {name: time for name, time in before.items() if name != "model/model.safetensors"}
    assert [row["hash"] for row in result["lineage"]] == [row["hash"] for row in done[1]["lineage"]]
    assert result["payoff"] == done[1]["payoff"] and result["metrics"] == done[1]["metrics"]


@pytest.mark.parametrize("file", ["lineage.json", "measures.json", "contamination.json", "result.json",
                                  "stages/finetune/blended/blend.json"])
def test_edited_results_are_not_reused(done, again, file):
    path = again / "run" / file
    path.write_text(path.read_text() + " ")  # still JSON
    with pytest.raises(UserError, match=f"{path.name} is damaged or was edited"):
        pipeline(again / "run/pipeline.toml", again / "run") if file != "result.json" else resume(again / "run")


def test_a_change_repeats_all_later_stages_and_can_be_reverted(done, again, caplog):
    run, plan = again / "run", again / "run/pipeline.toml"
    before, text = weights(run), plan.read_text()
    plan.write_text(text.replace('texts_of = "finetune"', f'texts_of = "finetune"\nseed     = {SEED + 5}'))
    assert plan.read_text() != text
    pipeline(plan, run)
    after = weights(run)
    changed = {name for name in before if before[name] != after[name]}
    assert all("general" not in name.split("/")[1] and "stages/domain" not in name for name in changed)
    later = ("stages/task", "stages/finetune", f"ablation/finetune/from-task/seed-{SEED + 1}")
    assert {f"{name}/model/model.safetensors" for name in later} | {"model/model.safetensors"} <= changed
    assert "general is unchanged and is kept." in caplog.messages
    assert any(text.startswith("task has changed") for text in caplog.messages)
    plan.write_text(text)
    caplog.clear()
    pipeline(plan, run)
    assert weights(run) == before
    notes = [f"{name} is unchanged and is kept." for name in ("general", "domain", "task", "finetune")]
    assert caplog.messages[:4] == notes


def test_a_finished_pipeline_is_reported(done, caplog):
    assert resume(done[0] / "run") == done[1]
    assert caplog.messages == [f"{done[0] / 'run'} is finished; nothing to do."]


def test_a_model_without_an_lm_head_gets_one_and_that_is_reported(done, tmp_path, caplog):
    """A fine-tuned model is a checkpoint without a language model head."""
    write_data(tmp_path)
    stages = {"given": {"model": str(done[0] / "run/stages/finetune")}, "domain": {"corpus": "domain.txt", "steps": 3},
              "finetune": four_stages()["finetune"]}
    result = pipeline(write_plan(tmp_path, stages, general="general.txt"), tmp_path / "run")
    assert any("started at random" in text and "heads.vocabulary" in text for text in caplog.messages)
    given, domain, task = result["stages"]
    assert given["general_loss"] is None and domain["forgotten"] is None and task["forgotten"] is not None
    assert domain["own_before"] is None and domain["own_after"] is not None
    assert "no language model head" in (tmp_path / "run/report.md").read_text()
    assert result["payoff"] == {} and "`ablate = true`" in (tmp_path / "run/report.md").read_text()


def test_refused_contamination_leaves_no_folder(tmp_path):
    write_data(tmp_path)
    line = (tmp_path / "test.tsv").read_text().splitlines()[4].partition("\t")[0]
    (tmp_path / "domain.txt").write_text((tmp_path / "domain.txt").read_text() + f"\n{line}.\n")
    stages = four_stages()
    with pytest.raises(UserError, match="would read what the task is tested on") as caught:
        pipeline(write_plan(tmp_path, stages, contamination="refuse"), tmp_path / "run")
    assert any("domain" in what and "test.tsv, line 5" in what for _, what in caught.value.problems)
    assert not (tmp_path / "run").exists()


def test_a_changed_file_is_reported_on_resume(again):
    (again / "run/result.json").unlink()
    (again / "domain.txt").write_text((again / "domain.txt").read_text().replace("cellar", "attic"))
    with pytest.raises(UserError, match="what goes into stages/domain has changed"):
        resume(again / "run")
