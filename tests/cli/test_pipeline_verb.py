"""`stemma pipeline`: output, reused stages, and input that is refused before training."""

from __future__ import annotations

import pytest
from commands import stemma
from toy_pipeline import four_stages, write_data, write_plan

from stemma import load, recipe


@pytest.fixture
def folder(tmp_path):
    write_data(tmp_path)
    return tmp_path


def test_tables_are_printed_and_unchanged_stages_are_reused(folder):
    stages = four_stages()
    del stages["task"]
    stages["domain"]["steps"] = stages["general"]["steps"] = 2
    plan = write_plan(folder, stages)
    done = stemma("pipeline", plan, "--out", folder / "run")
    assert done.code == 0, done.err
    assert "forgotten" in done.out and "contaminated" in done.out and "report.md" in done.out
    assert "note: domain: " in done.err and (folder / "run/stages/domain/report.html").is_file()
    again = stemma("pipeline", plan, "--out", folder / "run", "--json")
    assert again.code == 0 and "domain is unchanged and is kept." in again.err
    assert [stage["stage"] for stage in again.json["stages"]] == ["general", "domain", "finetune"]
    assert "accuracy" in again.json["metrics"]["dev"]
    overwritten = stemma("pipeline", plan, "--out", folder / "run", "--overwrite", "--json")
    assert overwritten.code == 0 and "is kept" not in overwritten.err
    expected = [stage["weights"] for stage in again.json["stages"]]
    assert [stage["weights"] for stage in overwritten.json["stages"]] == expected


def error_message(folder, stages, *more, **header):
    done = stemma("pipeline", write_plan(folder, stages, **header), "--out", folder / "run", *more)
    assert done.code == 2 and done.err.startswith("error: "), done.err
    assert not (folder / "run").exists() and "Traceback" not in done.err
    return done.err


def test_bad_plans_are_refused_before_training(folder):
    stages = four_stages()
    stages["domain"]["after"] = "task"
    assert "in a circle" in error_message(folder, stages)
    stages["domain"]["after"] = "nobody"
    assert 'there is no stage "nobody"' in error_message(folder, stages)
    stages = four_stages()
    stages["task"]["changes"] = ["objective.masked_lm.rate=7"]
    assert "objective.masked_lm.rate" in error_message(folder, stages)
    stages["general"] = {"model": "nowhere"}
    assert "nowhere" in error_message(folder, stages)
    (folder / "dev.tsv").write_text("text\tlabel\nA text.\tneutral\n")
    assert 'label "neutral" does not occur' in error_message(folder, four_stages())
    both = error_message(folder, stages)
    assert "nowhere" in both and 'label "neutral" does not occur' in both
    assert "cannot read the plan" in stemma("pipeline", folder / "no.toml", "--out", folder / "run").err
    (folder / "plan.toml").write_text("stages = [")
    assert "is not valid TOML" in stemma("pipeline", folder / "plan.toml", "--out", folder / "run").err


def test_a_folder_with_other_files_is_not_overwritten(folder):
    (folder / "run").mkdir()
    (folder / "run/notes.txt").write_text("mine")
    done = stemma("pipeline", write_plan(folder, four_stages()), "--out", folder / "run")
    assert done.code == 2 and "not empty" in done.err and (folder / "run/notes.txt").read_text() == "mine"


ULMFIT = ["stages.general.recipe=ulmfit@tiny", "stages.general.corpus=general.txt", "stages.general.steps=4",
          "stages.general.changes=['tokenizer.vocab_size=300','network.width=16','network.depth.hidden=24']",
          "stages.task.epochs=1", "stages.finetune.train=train.tsv", "stages.finetune.dev=dev.tsv",
          "stages.finetune.epochs=4"]


def test_the_plan_of_ulmfit(folder, monkeypatch):
    monkeypatch.chdir(folder)
    done = stemma("pipeline", "ulmfit", *ULMFIT, "--out", "run", "--json")
    assert done.code == 0, done.err
    assert [stage["stage"] for stage in done.json["stages"]] == ["general", "task", "finetune"]
    training = recipe("run/stages/finetune/recipe.toml").settings.training
    assert training.schedule.kind == "slanted_triangular" and training.layer_decay == 0.3846
    assert training.unfreeze is not None and training.steps == 4 * training.unfreeze
    task = recipe("run/stages/task/recipe.toml").settings
    assert task.training.layer_decay == 0.3846 and task.training.learning_rate == 0.004
    assert task.network.depth.weight_dropout == 0.0  # of the laptop size; fine-tuning has the paper's
    assert recipe("run/stages/finetune/recipe.toml").settings.network.depth.weight_dropout == 0.5
    before, after = (load(f"run/stages/{stage}").network.state_dict() for stage in ("task", "finetune"))
    moved = [name for name, value in after.items() if name in before and not value.equal(before[name])]
    assert moved  # four epochs unfreeze the head, then both layers, then the embedding
    assert any(name.startswith("embedding") for name in moved)


def test_a_plan_of_the_program_without_data(folder):
    done = stemma("pipeline", "ulmfit", "--out", folder / "run")
    assert done.code == 2 and "stages.finetune.train" in done.err and "stages.general.corpus" in done.err
    assert not (folder / "run").exists()
