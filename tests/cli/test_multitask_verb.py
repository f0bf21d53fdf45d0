"""`stemma multitask`: output, refused input, and the command in the report."""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path

import pytest
from commands import start, stemma
from toy_tasks import save_model, write_sets

TASK = '[tasks.{name}]\nkind = "{kind}"\ntrain = "{kind}-train.jsonl"\ndev = "{kind}-dev.jsonl"\n'


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("plans")
    save_model(folder / "bert")
    for kind in ("classify", "pair"):
        write_sets(folder, kind, 48, 16)
    tasks = TASK.format(name="mood", kind="classify") + TASK.format(name="match", kind="pair") + 'head = "san"\n'
    (folder / "plan.toml").write_text("finetune = true\n" + tasks)
    return folder


def test_a_run_has_scores_for_each_task(toy, tmp_path):
    run = tmp_path / "run"
    done = stemma("multitask", toy / "plan.toml", "--model", toy / "bert", "--out", run, "--steps", 3, "--json")
    assert done.code == 0, done.err
    assert (done.json["task"], done.json["steps"], done.json["recipe"]) == ("multitask", 3, "bert@tiny")
    assert set(done.json["metrics"]["dev"]["tasks"]) == {"mood", "match"} == set(done.json["finetuned"])
    assert done.json["finetuned"]["match"]["metrics"]["dev"]["examples"] == 16
    assert done.json["examples_per_second"] > 0 and "note: mood: 48 training examples" in done.err
    assert json.loads((run / "result.json").read_text()) == done.json
    again = stemma("resume", run, "--json")
    assert (again.code, again.json) == (0, done.json) and "is finished" in again.err
    page = (run / "report.html").read_text()
    assert "fine-tuning (multitask) run" in page and "stemma multitask" in page


def test_the_printed_result_has_a_line_for_each_task_and_stage(toy, tmp_path):
    done = stemma("multitask", toy / "plan.toml", "--model", toy / "bert", "--out", tmp_path / "run", "--steps", 2)
    assert done.code == 0, done.err
    for task in ("mood", "match"):
        assert f"dev, {task} · accuracy" in done.out and f"dev, {task} after its own fine-tuning" in done.out


def test_the_command_in_the_report_repeats_the_run(toy, tmp_path):
    from stemma.lab.report.run_html import run_command
    from stemma.training.run_folder import read_run

    stemma("multitask", toy / "plan.toml", "--model", toy / "bert", "--out", tmp_path / "one", "--epochs", 0.5,
           "--seed", 4, "training.batch_size=16")
    words = shlex.split(run_command(*read_run(tmp_path / "one"), tmp_path / "one"))
    assert words[words.index("--epochs") + 1] == "0.5" and "--steps" not in words
    words[words.index("--out") + 1] = str(tmp_path / "two")
    assert stemma(*words[1:]).code == 0
    for model in ("model", "tasks/mood/model", "tasks/match/model"):
        first, second = ((tmp_path / name / model / "model.safetensors").read_bytes() for name in ("one", "two"))
        assert first == second


def test_bad_input_is_refused_before_files_are_written(toy, tmp_path):
    plan = toy / "bad.toml"
    plan.write_text('[tasks.mood]\nkind = "classify"\ntrain = "none.jsonl"\nepochs = 3\n')
    done = stemma("multitask", plan, "--model", toy / "bert", "--out", tmp_path / "run", "--json")
    assert done.code == 2 and done.err.startswith("error: 3 problems in the plan") and len(done.json["problems"]) == 3
    assert "tasks.mood.dev: is missing" in done.json["problems"]
    unknown_key = stemma("multitask", toy / "plan.toml", "--model", toy / "bert", "--out", tmp_path / "run",
                         "training.learning_rat=1")
    assert unknown_key.code == 2 and 'Did you mean "training.learning_rate"' in unknown_key.err
    two_budgets = stemma("multitask", toy / "plan.toml", "--model", toy / "bert", "--out", tmp_path / "run",
                         "--steps", 2, "--epochs", 1)
    assert two_budgets.code == 2 and "exclude each other" in two_budgets.err
    assert not (tmp_path / "run").exists() and "Traceback" not in done.err + unknown_key.err + two_budgets.err


def test_an_interruption_while_fine_tuning_one_task_names_the_multitask_run(toy, tmp_path):
    run = tmp_path / "run"
    running = start("multitask", toy / "plan.toml", "--model", toy / "bert", "--out", run, "--steps", 80,
                    "training.log_every=1")
    ended = running.kill_when(lambda: (run / "tasks" / "mood" / "log.jsonl").is_file(), signal.SIGINT)
    assert ended.code == 130 and f"`stemma resume {run}`" in ended.err, ended.err


def test_help_has_an_example():
    done = stemma("multitask", "--help")
    assert done.code == 0 and "Example: stemma multitask plan.toml" in done.out
