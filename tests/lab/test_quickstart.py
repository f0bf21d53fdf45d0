"""The quickstart: most tests use a shortened one; a slow test runs the full one and checks that pre-training helps."""

from __future__ import annotations

import html
import json
import os
import shlex
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import start
from conftest import SEED

import stemma
from stemma import recipe_loading
from stemma.cli import main
from stemma.cli.quickstart import _show
from stemma.errors import Interrupted, UserError
from stemma.exchange import families
from stemma.lab import cell_runner
from stemma.lab.experiment import ComputeBudget, Experiment
from stemma.lab.quickstart import finetune_comparison, throughput
from stemma.lab.quickstart import quickstart as quickstart_module
from stemma.lab.quickstart.html_report import write_quickstart_report
from stemma.lab.quickstart.masked_accuracy import sample_std
from stemma.lab.quickstart.quickstart import quickstart
from stemma.lab.quickstart.recipe_changes import NO_EFFECT
from stemma.lab.quickstart.usage import usage
from stemma.lab.quickstart.verdict import verdicts
from stemma.lab.report.run_html import command_line_changes, write_report
from stemma.text.tokenizer import Tokenizer
from stemma.training.budget import Budget
from stemma.training.run_folder import read_run

SHORT = {"minutes": 0.02, "seeds": 2, "labels": 40, "tests": 60}


@pytest.fixture(scope="module")
def result(shared, python_pages) -> dict:
    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(quickstart_module.python_docs, "collect_pages", lambda: python_pages)
            quickstart(folder, **SHORT)

    return json.loads((shared("quickstart", make) / "result.json").read_text())


def test_the_result_has_all_numbers_in_valid_ranges(result):
    assert result["text"]["words"] > 5 * result["text"]["held_out_words"] > 0
    assert set(result["masked"]) == {"unigram", "bigram", "two-sided", "model"}
    assert all(0 <= scores["accuracy"] <= 1 and scores["loss"] > 0 for scores in result["masked"].values())
    losses = [result["masked"][name]["loss"] for name in ("two-sided", "bigram", "unigram")]
    assert losses[0] < losses[1] < losses[2]
    for classifier in ("random", "n-grams", "pre-trained"):
        assert len(result["probe"][classifier]["test"]) == len(result["probe"][classifier]["train"]) == SHORT["seeds"]
    assert len(result["filled"]) == quickstart_module.NUM_FILLS
    assert all("[MASK]" in row["text"] for row in result["filled"])
    assert json.loads((Path(result["out"]) / "result.json").read_text())["masked"] == result["masked"]


def test_the_quickstart_is_a_finished_experiment_of_the_lab(result, capsys):
    """Two variants and one task per round. `stemma resume` finds all cells finished and has the same scores."""
    lab, run = Path(result["out"]) / quickstart_module.LAB, Path(result["out"]) / "run"
    experiment = Experiment.read(lab)
    assert [(variant.name, variant.pretrained) for variant in experiment.variants] == [
        ("pre-trained", True), ("random", False)]
    assert experiment.allowance == ComputeBudget("minutes", result["minutes"])
    assert len(experiment.tasks) == SHORT["seeds"]
    before = {file: file.stat().st_mtime_ns for file in [*lab.glob("cells/*/**/scores.json"), run / "result.json"]}
    assert main(["resume", str(lab), "--json"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    assert before == {file: file.stat().st_mtime_ns for file in before}
    for row in resumed["table"]:
        scores = [row["scores"][f"classify-{index + 1}.accuracy"]["mean"] for index in range(SHORT["seeds"])]
        assert scores == result["probe"][row["variant"]]["test"]
        assert ("pseudo_bits_per_byte" in row["scores"]) == bool(row["cost"]) == (row["variant"] == "pre-trained")
    assert "2 of 2" in (lab / "report.html").read_text()


def test_scores_of_every_fine_tuning_are_stored_and_its_weights_are_not(result):
    """Of each task of a cell, the scores are stored; the run and random weights are deleted."""
    folders = sorted((Path(result["out"]) / quickstart_module.LAB).glob("cells/*/tasks/*"))
    assert len(folders) == 2 * SHORT["seeds"]
    assert not [file for folder in folders for file in folder.iterdir() if file.is_dir()]
    stored = [json.loads((folder / "scores.json").read_text()) for folder in folders]
    for split, values in (("test", [scores["scores"]["accuracy"]["value"] for scores in stored]),
                          ("train", [scores["also"]["accuracy"] for scores in stored])):
        assert sorted(values) == sorted(result["probe"]["random"][split] + result["probe"]["pre-trained"][split])


def test_the_probe_uses_mean_pooling_and_a_frozen_embedding(result, tmp_path):
    run, task = Path(result["out"]) / "run", Path(result["out"]) / "task"
    stemma.finetune("classify", run, task / "train.jsonl", task / "test.jsonl", tmp_path / "tuned", steps=2,
                    changes=finetune_comparison.ProbeTraining().changes())
    before, after = stemma.load(run), stemma.load(tmp_path / "tuned")
    assert after.task_config().heads["task"].place == "mean"
    assert json.loads((tmp_path / "tuned/model/config.json").read_text())["classifier_pooling"] == "mean"
    assert torch.equal(before.network.embedding.tokens.weight, after.network.embedding.tokens.weight)
    changed = [not torch.equal(a, b) for a, b in zip(before.network.encoder.parameters(),
                                                     after.network.encoder.parameters(), strict=True)]
    assert all(changed)


def test_held_out_documents_are_not_in_the_training_text(result):
    out = Path(result["out"])
    train, held_out = ((out / name).read_text().split("\n\n") for name in ("train.txt", "held-out.txt"))
    assert len(train) == result["text"]["documents"] and len(held_out) == result["text"]["held_out_documents"]
    assert not set(train) & set(held_out)


def test_the_report_has_the_numbers_and_loads_nothing(result):
    page = Path(result["report"]).read_text()
    for number in (f"{result['masked']['model']['accuracy']:.1%}", f"{np.mean(result['probe']['random']['test']):.3f}",
                   f"{result['pretraining']['steps']:,}"):
        assert number in page
    assert page.count("<svg") == 2 and "http-equiv" in page and 'src="http' not in page


def example_result(model: tuple[float, float], random: list[float], trained: list[float],
             ngrams: Sequence[float] = ()) -> dict:
    """A possible result: accuracy and loss of the model, and test accuracies by seed."""
    baselines = {"unigram": (0.052, 6.35), "bigram": (0.152, 5.5), "two-sided": (0.243, 4.51)}
    return {"labels": 400, "masked": {name: {"accuracy": accuracy, "loss": loss}
                                      for name, (accuracy, loss) in {**baselines, "model": model}.items()},
            "probe": {"random": {"test": random}, "n-grams": {"test": ngrams or random},
                      "pre-trained": {"test": trained}}}


@pytest.mark.parametrize(("model", "winner", "sentence"), [
    ((0.178, 5.02), "counting", "The model is worse than the n-gram baseline (both neighbours): masked-token accuracy "
                                "17.8% against 24.3%, loss 5.02 nats against 4.51."),
    ((0.311, 3.9), "model", "The model beats the n-gram baseline (both neighbours): masked-token accuracy 31.1% "
                            "against 24.3%, loss 3.90 nats against 4.51."),
    ((0.2431, 4.38), "model", "The model beats the n-gram baseline (both neighbours): masked-token accuracy 24.3%"),
    ((0.243, 4.6), "counting", "The model is worse than the n-gram baseline (both neighbours)"),
    ((0.2433, 4.512), "neither", "The model is as good as the n-gram baseline (both neighbours), and no better"),
    ((0.22, 4.4), "neither", "The model and the n-gram baseline (both neighbours) are each better by one of two "
                             "metrics: masked-token accuracy 22.0%"),
])
def test_the_verdict_names_the_better_predictor_of_masked_tokens(model, winner, sentence):
    verdict = verdicts(example_result(model, [0.5], [0.6]))["masked"]
    assert (verdict["winner"], verdict["against"]) == (winner, "two-sided") and verdict["said"].startswith(sentence)


@pytest.mark.parametrize(("rival_scores", "trained", "winner", "sentence"), [
    ([0.54, 0.53, 0.55], [0.66, 0.67, 0.68], "pre-trained", "Pre-trained weights beat {} in all 3 seeds: test accuracy "
                                             "0.670 against 0.540 after 400 labels."),
    ([0.54, 0.53], [0.51, 0.52], None, "Pre-trained weights are worse than {} in all 2 seeds: test "),
    ([0.54, 0.53, 0.5], [0.51, 0.55, 0.5], "neither", "Neither pre-trained weights nor {} win: pre-trained weights are "
                                                      "better in 1 and worse in 1 of 3 seeds: test accuracy 0.520"),
    ([0.5], [0.6], "pre-trained", "Pre-trained weights beat {} in 1 seed: "),
])
@pytest.mark.parametrize(("rival", "key", "rival_name"), [("random", "probe", "random weights"),
                                                      ("n-grams", "n-grams", "the linear n-gram classifier")])
def test_the_verdict_compares_the_classifier_with_each_baseline(rival, key, rival_name, rival_scores, trained, winner,
                                                                sentence):
    other = [1.0] * len(rival_scores)  # of the other baseline: not used
    by_classifier = (rival_scores, trained, other) if rival == "random" else (other, trained, rival_scores)
    found = verdicts(example_result((0.3, 4.0), *by_classifier))
    assert found[key]["winner"] == (winner or rival) and found[key]["against"] == rival
    assert found[key]["said"].startswith(sentence.format(rival_name))


@pytest.mark.parametrize("model", [(0.178, 5.02), (0.311, 3.9)])
def test_report_and_terminal_have_the_same_verdicts(result, model, tmp_path, capsys):
    numbers = example_result(model, [0.5, 0.5], [0.6, 0.4], [0.7, 0.7])
    changed = {**result, "masked": numbers["masked"],
               "probe": {**result["probe"], **{name: {**result["probe"][name], **numbers["probe"][name]}
                                             for name in numbers["probe"]}}}
    changed["verdicts"] = verdicts(changed)
    page = write_quickstart_report(changed, tmp_path).read_text()
    _show(changed)
    printed = capsys.readouterr().out
    assert len(changed["verdicts"]) == 3
    for verdict in changed["verdicts"].values():
        assert verdict["said"] in page and verdict["said"] in printed


def test_verdicts_are_stored(result):
    stored = json.loads((Path(result["out"]) / "result.json").read_text())
    assert stored["verdicts"] == result["verdicts"] == verdicts(stored)


def test_the_run_works_with_fill_and_resume(result, capsys):
    run = Path(result["out"]) / "run"
    assert main(["fill", str(run), "return the [MASK] of the list.", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predictions"]
    assert main(["resume", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == result["pretraining"]["steps"]


def test_the_printed_commands_give_the_same_recipe(result):
    run_recipe, _ = read_run(Path(result["out"]) / "run")
    words = shlex.split(result["commands"][2])
    changes = [word for word in words if "=" in word and not word.startswith("-")]
    printed_recipe = recipe_loading.recipe(words[2], changes)
    assert {key: printed_recipe.values[key] for key in ("corpus", "network", "objective", "training")} == \
           {key: run_recipe.values[key] for key in ("corpus", "network", "objective", "training")}
    assert recipe_loading.recipe(run_recipe.label,
                                 command_line_changes(run_recipe)).values["network"] == run_recipe.values["network"]


@pytest.mark.parametrize(("tokens_per_second", "requested", "minutes", "sentence"), [
    (20_000, None, 4, "this machine trains on about 20,000 tokens per second: 4.8 million tokens in 4 minutes"),
    (7_000, None, 6, "this machine trains on about 7,000 tokens per second: 1.7 million tokens in 4 minutes, fewer "
                     "than the 2.5 million that it takes to beat the n-gram baselines; so it trains for 6 minutes "
                     "instead"),
    (4_000, None, 8, "; it trains for 8 minutes instead, still only 1.9 million tokens: expect the model to be worse "
                     "than the baselines (--minutes 10.5 would be enough)"),
    (7_000, 1.0, 1, "0.4 million tokens in 1 minute, fewer than the 2.5 million that it takes to beat the n-gram "
                    "baselines; --minutes 6 would be enough"),
    (4_000, 12.0, 12, "2.9 million tokens in 12 minutes"),
    (400, 1.0, 1, "24,000 tokens in 1 minute, fewer than the 2.5 million that it takes to beat the n-gram baselines; "
                  "--minutes 104.25 would be enough"),
])
def test_a_slow_machine_trains_longer_and_reports_it(monkeypatch, tokens_per_second, requested, minutes, sentence):
    for name, value in {"MINUTES": 4.0, "ENOUGH_TOKENS": 2_500_000, "MAX_EXTENSION": 2.0}.items():
        monkeypatch.setattr(throughput, name, value)
    speed = throughput.Speed.from_rate(tokens_per_second, requested)
    assert speed.minutes == minutes and speed.said.endswith(sentence)


def test_the_throughput_is_measured_and_shown(result, capsys):
    assert result["minutes"] == SHORT["minutes"]  # as requested
    run = result["pretraining"]
    # the whole run was timed
    assert result["speed"]["tokens_per_second"] == pytest.approx(run["tokens_per_second"], rel=0.01)
    _show(result)
    sentence = result["speed"]["said"]
    assert "would be enough" in sentence and sentence in capsys.readouterr().out
    assert sentence[1:] in Path(result["report"]).read_text()
    assert set(result["stages"]) == {"text", "corpus", "pretrain", "worth"}
    assert all(stage["cpu"] > 0 and stage["took"] > 0 for stage in result["stages"].values())


def test_changes_from_bert_are_listed_with_reasons(result, capsys):
    run_recipe, _ = read_run(Path(result["out"]) / "run")
    changes = recipe_loading.diff("bert", run_recipe)
    assert [change["key"] for change in result["diff"]] == [change.key for change in changes]
    assert {"network.layers", "tokenizer.vocab_size"} < {change.key for change in changes}
    assert not [change["key"] for change in result["diff"] if not change["why"]], "give a reason in recipe_changes.py"
    page = Path(result["report"]).read_text().replace("<wbr>", "").replace("&#x27;", "'")
    _show(result)
    printed = " ".join(capsys.readouterr().out.split())
    for change in result["diff"]:
        assert f"<code>{change['key']}</code>" in page and change["why"] in page
        assert (change["key"] in printed and change["why"] in printed) == (NO_EFFECT not in change["why"])


def test_the_output_ends_with_usage_examples(result, capsys):
    model = Path(result["out"]) / "run/model"
    in_transformers = json.loads((model / "config.json").read_text())["model_type"] in families()
    assert set(result["usage"]) == {"command line", "python", *(["transformers"] if in_transformers else [])}
    _show(result)
    *_, last = result["usage"].values()
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert printed[-len(last):] == last
    page = html.unescape(Path(result["report"]).read_text())
    assert all(line in page and line in printed for lines in result["usage"].values() for line in lines)


def test_the_python_example_runs(result, capsys):
    exec("\n".join(result["usage"]["python"]), {})
    assert "probability" in capsys.readouterr().out


def test_the_command_line_examples_run(result, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill, finetune = (shlex.split(line) for line in result["usage"]["command line"])
    assert main([*fill[1:], "--json"]) == 0 and json.loads(capsys.readouterr().out)["predictions"]
    assert main([*finetune[1:], "--json", "--epochs", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["dev"]["examples"] == SHORT["tests"]


def test_the_transformers_example_runs_if_transformers_can_load_the_model(result, tmp_path, capsys):
    tokenizer = Tokenizer.load(Path(result["out"]) / "tokenizer")
    model = stemma.build("bert@tiny", vocab_size=tokenizer.vocab_size)
    stemma.save(replace(model, tokenizer=tokenizer), tmp_path / "run/model")
    exec("\n".join(usage(tmp_path / "run", tmp_path)["transformers"]), {})
    assert "token_str" in capsys.readouterr().out


def test_a_finished_folder_is_not_overwritten(result):
    before = (Path(result["out"]) / "result.json").read_bytes()
    with pytest.raises(UserError, match="finished quickstart.*--overwrite"):
        quickstart(result["out"], **SHORT)
    assert (Path(result["out"]) / "result.json").read_bytes() == before


def test_a_folder_with_other_files_is_rejected(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="not empty"):
            quickstart(tmp_path, **SHORT, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_invalid_option_leaves_no_folder(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="--minutes must be a number greater than 0"):
        quickstart(tmp_path / "q", minutes=0)
    monkeypatch.setattr(quickstart_module.python_docs, "collect_pages", _refuse)
    with pytest.raises(UserError, match="no source"):
        quickstart(tmp_path / "q")
    assert not (tmp_path / "q").exists()


def _refuse() -> list:
    raise UserError("no source")


@pytest.mark.slow
def test_an_interrupted_quickstart_resumes(tmp_path, monkeypatch, python_pages):
    """Interrupted twice: after the throughput is measured, and before the evaluation; the third run finishes."""
    options = {**SHORT, "minutes": None}
    monkeypatch.setattr(quickstart_module.python_docs, "collect_pages", lambda: python_pages[::8])
    for name, value in {"MINUTES": 0.01, "WARMUP_SECONDS": 0.05, "TIMED_SECONDS": 0.05,
                        "tokens_per_second": lambda tokens, seconds: 100.0}.items():
        monkeypatch.setattr(throughput, name, value)
    with pytest.raises(Interrupted, match="stemma quickstart --out .* goes on"):
        quickstart(tmp_path / "q", **options,
                   say=lambda text: _interrupt() if "100 tokens per second" in text else None)
    assert read_run(tmp_path / "q/run")[1].budget == Budget("minutes", 0.02)
    written = (tmp_path / "q/train.txt").stat().st_mtime_ns
    monkeypatch.setattr(throughput, "train_and_time", _fail)
    monkeypatch.setattr(cell_runner, "create_run", _fail)
    monkeypatch.setattr(quickstart_module, "_evaluate", _interrupt)
    with pytest.raises(Interrupted):
        quickstart(tmp_path / "q", **options)
    with pytest.raises(UserError, match=r"other settings \(--seed 0\)"):
        quickstart(tmp_path / "q", **{**SHORT, "minutes": 9})
    monkeypatch.undo()
    for name in ("train.txt", "held-out.txt"):
        with appended_line(tmp_path / "q" / name), \
                pytest.raises(UserError, match=f"{name} is damaged or was edited .* add --overwrite"):
            quickstart(tmp_path / "q", **options)
    monkeypatch.setattr(quickstart_module, "_pretrain", _fail)
    result = quickstart(tmp_path / "q", **options)
    assert result["minutes"] == 0.02 and result["speed"]["tokens_per_second"] == 100 and result["masked"]
    assert "--minutes 0.02 " in result["commands"][2]
    assert result["pretraining"]["elapsed_seconds"] >= 1.2
    assert (tmp_path / "q/train.txt").stat().st_mtime_ns == written


@contextmanager
def appended_line(file: Path) -> Iterator[None]:
    """The file has an additional line inside this block."""
    before = file.stat()
    with file.open("a") as end:
        end.write("An additional line.\n")
    yield
    os.truncate(file, before.st_size)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _fail(*_: object, **__: object) -> dict:
    raise AssertionError("must not be called again")


def _interrupt(*_: object, **__: object) -> dict:
    raise KeyboardInterrupt


def test_control_c_while_pretraining_exits_130_and_resumes(tmp_path):
    log = tmp_path / "q/run/log.jsonl"
    process = start("quickstart", "--out", tmp_path / "q", "--minutes", 9)
    stopped = process.kill_when(lambda: log.is_file() and log.stat().st_size, signal.SIGINT)
    last = stopped.err.splitlines()[-1]
    assert stopped.code == 130 and last.startswith("stopped at step") and "stemma quickstart --out" in last
    assert list((tmp_path / "q/run/checkpoints").glob("step-*"))


def test_a_report_can_be_written_for_any_run(result, tmp_path):
    run = Path(result["out"]) / "run"
    page = write_report(run).read_text()
    assert f"{result['pretraining']['validation_loss']:.3f}" in page
    assert f"stemma pretrain {quickstart_module.RECIPE} --corpus" in page
    with pytest.raises(UserError, match="not a run"):
        write_report(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_pretraining_improves_masked_accuracy_and_fine_tuning(tmp_path):
    result = quickstart(tmp_path / "q", seed=SEED)
    masked, probe = result["masked"], result["probe"]
    assert masked["model"]["accuracy"] > masked["bigram"]["accuracy"]
    gain = np.mean(probe["pre-trained"]["test"]) - np.mean(probe["random"]["test"])
    assert gain > 2 * max(sample_std(probe["random"]["test"]), sample_std(probe["pre-trained"]["test"]))
    assert min(probe["pre-trained"]["test"]) > max(probe["random"]["test"])
    assert result["verdicts"]["n-grams"]["winner"] == "pre-trained"
    assert np.mean(probe["random"]["train"]) > 0.95  # random weights fit the training examples, too
