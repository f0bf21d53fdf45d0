"""The quickstart: a shortened one tells the whole story; the full one shows that pre-training pays."""

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
from stemma.lab.quickstart import quickstart as story
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
def told(shared, python_pages) -> dict:
    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(story.python_docs, "collect_pages", lambda: python_pages)
            quickstart(folder, **SHORT)

    return json.loads((shared("quickstart", make) / "result.json").read_text())


def test_every_number_is_there_and_possible(told):
    assert told["text"]["words"] > 5 * told["text"]["held_out_words"] > 0
    assert set(told["masked"]) == {"unigram", "bigram", "two-sided", "model"}
    assert all(0 <= each["accuracy"] <= 1 and each["loss"] > 0 for each in told["masked"].values())
    assert told["masked"]["two-sided"]["loss"] < told["masked"]["bigram"]["loss"] < told["masked"]["unigram"]["loss"]
    for learner in ("random", "n-grams", "pre-trained"):
        assert len(told["probe"][learner]["test"]) == len(told["probe"][learner]["train"]) == SHORT["seeds"]
    assert len(told["filled"]) == story.NUM_FILLS and all("[MASK]" in row["text"] for row in told["filled"])
    assert json.loads((Path(told["out"]) / "result.json").read_text())["masked"] == told["masked"]


def test_it_is_an_experiment_of_the_lab(told, capsys):
    """Two variants, a task for each round; the lab finds everything done, and its results are the quickstart's."""
    lab, run = Path(told["out"]) / story.LAB, Path(told["out"]) / "run"
    asked = Experiment.read(lab)
    assert [(one.name, one.pretrained) for one in asked.variants] == [("pre-trained", True), ("random", False)]
    assert asked.allowance == ComputeBudget("minutes", told["minutes"]) and len(asked.tasks) == SHORT["seeds"]
    before = {file: file.stat().st_mtime_ns for file in [*lab.glob("cells/*/**/scores.json"), run / "result.json"]}
    assert main(["resume", str(lab), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert before == {file: file.stat().st_mtime_ns for file in before}
    for row in found["table"]:
        scores = [row["scores"][f"classify-{number + 1}.accuracy"]["mean"] for number in range(SHORT["seeds"])]
        assert scores == told["probe"][row["variant"]]["test"]
        assert ("pseudo_bits_per_byte" in row["scores"]) == bool(row["cost"]) == (row["variant"] == "pre-trained")
    assert "2 of 2" in (lab / "report.html").read_text()


def test_every_fine_tune_is_a_run_that_is_learnt_once(told):
    """A task of a cell: what is found is kept, and neither the run itself nor the random weights are."""
    kept = sorted((Path(told["out"]) / story.LAB).glob("cells/*/tasks/*"))
    assert len(kept) == 2 * SHORT["seeds"] and not [file for node in kept for file in node.iterdir() if file.is_dir()]
    found = [json.loads((node / "scores.json").read_text()) for node in kept]
    for part, values in (("test", [one["scores"]["accuracy"]["value"] for one in found]),
                         ("train", [one["also"]["accuracy"] for one in found])):
        assert sorted(values) == sorted(told["probe"]["random"][part] + told["probe"]["pre-trained"][part])


def test_the_probe_pools_by_the_mean_and_leaves_the_embedding(told, tmp_path):
    run, task = Path(told["out"]) / "run", Path(told["out"]) / "task"
    stemma.finetune("classify", run, task / "train.jsonl", task / "test.jsonl", tmp_path / "tuned", steps=2,
                    changes=finetune_comparison.ProbeTraining().changes())
    before, after = stemma.load(run), stemma.load(tmp_path / "tuned")
    assert after.task_config().heads["task"].place == "mean"
    assert json.loads((tmp_path / "tuned/model/config.json").read_text())["classifier_pooling"] == "mean"
    assert torch.equal(before.network.embedding.tokens.weight, after.network.embedding.tokens.weight)
    changed = [not torch.equal(a, b) for a, b in zip(before.network.encoder.parameters(),
                                                     after.network.encoder.parameters(), strict=True)]
    assert all(changed)


def test_no_held_out_document_was_trained_on(told):
    out = Path(told["out"])
    train, held_out = ((out / name).read_text().split("\n\n") for name in ("train.txt", "held-out.txt"))
    assert len(train) == told["text"]["documents"] and len(held_out) == told["text"]["held_out_documents"]
    assert not set(train) & set(held_out)


def test_the_report_holds_the_numbers_and_asks_for_nothing(told):
    page = Path(told["report"]).read_text()
    for number in (f"{told['masked']['model']['accuracy']:.1%}", f"{np.mean(told['probe']['random']['test']):.3f}",
                   f"{told['pretraining']['steps']:,}"):
        assert number in page
    assert page.count("<svg") == 2 and "http-equiv" in page and 'src="http' not in page


def measured(model: tuple[float, float], random: list[float], trained: list[float],
             ngrams: Sequence[float] = ()) -> dict:
    """What a quickstart could have found: accuracy and loss of the model, and test accuracies by seed."""
    counted = {"unigram": (0.052, 6.35), "bigram": (0.152, 5.5), "two-sided": (0.243, 4.51)}
    return {"labels": 400, "masked": {name: {"accuracy": right, "loss": nats}
                                      for name, (right, nats) in {**counted, "model": model}.items()},
            "probe": {"random": {"test": random}, "n-grams": {"test": ngrams or random},
                      "pre-trained": {"test": trained}}}


@pytest.mark.parametrize(("model", "winner", "said"), [
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
def test_the_better_predictor_of_masked_tokens_is_named(model, winner, said):
    found = verdicts(measured(model, [0.5], [0.6]))["masked"]
    assert (found["winner"], found["against"]) == (winner, "two-sided") and found["said"].startswith(said)


@pytest.mark.parametrize(("theirs", "trained", "winner", "said"), [
    ([0.54, 0.53, 0.55], [0.66, 0.67, 0.68], "pre-trained", "Pre-trained weights beat {} in all 3 seeds: test accuracy "
                                             "0.670 against 0.540 after 400 labels."),
    ([0.54, 0.53], [0.51, 0.52], None, "Pre-trained weights are worse than {} in all 2 seeds: test "),
    ([0.54, 0.53, 0.5], [0.51, 0.55, 0.5], "neither", "Neither pre-trained weights nor {} win: pre-trained weights are "
                                                      "better in 1 and worse in 1 of 3 seeds: test accuracy 0.520"),
    ([0.5], [0.6], "pre-trained", "Pre-trained weights beat {} in 1 seed: "),
])
@pytest.mark.parametrize(("rival", "key", "called"), [("random", "probe", "random weights"),
                                                      ("n-grams", "n-grams", "the linear n-gram classifier")])
def test_the_better_classifier_is_named_against_each_baseline(rival, key, called, theirs, trained, winner, said):
    ends = [1.0] * len(theirs)  # of the other baseline: they do not enter
    found = verdicts(measured((0.3, 4.0), *((theirs, trained, ends) if rival == "random" else (ends, trained, theirs))))
    assert found[key]["winner"] == (winner or rival) and found[key]["against"] == rival
    assert found[key]["said"].startswith(said.format(called))


@pytest.mark.parametrize("model", [(0.178, 5.02), (0.311, 3.9)])
def test_all_summaries_say_who_won(told, model, tmp_path, capsys):
    numbers = measured(model, [0.5, 0.5], [0.6, 0.4], [0.7, 0.7])
    result = {**told, "masked": numbers["masked"],
              "probe": {**told["probe"], **{name: {**told["probe"][name], **numbers["probe"][name]}
                                            for name in numbers["probe"]}}}
    result["verdicts"] = verdicts(result)
    page = write_quickstart_report(result, tmp_path).read_text()
    _show(result)
    printed = capsys.readouterr().out
    assert len(result["verdicts"]) == 3
    for verdict in result["verdicts"].values():
        assert verdict["said"] in page and verdict["said"] in printed


def test_who_won_is_stored(told):
    stored = json.loads((Path(told["out"]) / "result.json").read_text())
    assert stored["verdicts"] == told["verdicts"] == verdicts(stored)


def test_the_run_is_a_run_like_any_other(told, capsys):
    run = Path(told["out"]) / "run"
    assert main(["fill", str(run), "return the [MASK] of the list.", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predictions"]
    assert main(["resume", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == told["pretraining"]["steps"]


def test_the_commands_by_hand_mean_the_same(told):
    chosen, _ = read_run(Path(told["out"]) / "run")
    words = shlex.split(told["commands"][2])
    changes = [word for word in words if "=" in word and not word.startswith("-")]
    by_hand = recipe_loading.recipe(words[2], changes)
    assert {key: by_hand.values[key] for key in ("corpus", "network", "objective", "training")} == \
           {key: chosen.values[key] for key in ("corpus", "network", "objective", "training")}
    assert recipe_loading.recipe(chosen.label,
                                 command_line_changes(chosen)).values["network"] == chosen.values["network"]


@pytest.mark.parametrize(("tokens_per_second", "asked", "minutes", "said"), [
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
def test_a_slow_machine_is_given_more_time_and_says_so(monkeypatch, tokens_per_second, asked, minutes, said):
    for name, value in {"MINUTES": 4.0, "ENOUGH_TOKENS": 2_500_000, "MAX_EXTENSION": 2.0}.items():
        monkeypatch.setattr(throughput, name, value)
    found = throughput.Speed.from_rate(tokens_per_second, asked)
    assert found.minutes == minutes and found.said.endswith(said)


def test_the_speed_is_measured_and_said_everywhere(told, capsys):
    assert told["minutes"] == SHORT["minutes"]  # what was asked for
    run = told["pretraining"]
    assert told["speed"]["tokens_per_second"] == pytest.approx(run["tokens_per_second"], rel=0.01)  # it was all of it
    _show(told)
    said = told["speed"]["said"]
    assert "would be enough" in said and said in capsys.readouterr().out
    assert said[1:] in Path(told["report"]).read_text()
    assert set(told["stages"]) == {"text", "corpus", "pretrain", "worth"}
    assert all(stage["cpu"] > 0 and stage["took"] > 0 for stage in told["stages"].values())


def test_what_is_changed_from_bert_is_listed_with_reasons(told, capsys):
    chosen, _ = read_run(Path(told["out"]) / "run")
    changes = recipe_loading.diff("bert", chosen)
    assert [change["key"] for change in told["diff"]] == [change.key for change in changes]
    assert {"network.layers", "tokenizer.vocab_size"} < {change.key for change in changes}
    assert not [change["key"] for change in told["diff"] if not change["why"]], "give a reason in recipe_changes.py"
    page = Path(told["report"]).read_text().replace("<wbr>", "").replace("&#x27;", "'")
    _show(told)
    printed = " ".join(capsys.readouterr().out.split())
    for change in told["diff"]:
        assert f"<code>{change['key']}</code>" in page and change["why"] in page
        assert (change["key"] in printed and change["why"] in printed) == (NO_EFFECT not in change["why"])


def test_the_last_lines_show_how_to_use_the_model(told, capsys):
    model = Path(told["out"]) / "run/model"
    known = json.loads((model / "config.json").read_text())["model_type"] in families()
    assert set(told["usage"]) == {"command line", "python", *(["transformers"] if known else [])}
    _show(told)
    *_, last = told["usage"].values()
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert printed[-len(last):] == last
    page = html.unescape(Path(told["report"]).read_text())
    assert all(line in page and line in printed for lines in told["usage"].values() for line in lines)


def test_the_lines_in_python_run(told, capsys):
    exec("\n".join(told["usage"]["python"]), {})
    assert "probability" in capsys.readouterr().out


def test_the_lines_for_the_command_line_run(told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill, finetune = (shlex.split(line) for line in told["usage"]["command line"])
    assert main([*fill[1:], "--json"]) == 0 and json.loads(capsys.readouterr().out)["predictions"]
    assert main([*finetune[1:], "--json", "--epochs", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["dev"]["examples"] == SHORT["tests"]


def test_the_lines_for_transformers_run_where_the_model_opens_there(told, tmp_path, capsys):
    tokenizer = Tokenizer.load(Path(told["out"]) / "tokenizer")
    model = stemma.build("bert@tiny", vocab_size=tokenizer.vocab_size)
    stemma.save(replace(model, tokenizer=tokenizer), tmp_path / "run/model")
    exec("\n".join(usage(tmp_path / "run", tmp_path)["transformers"]), {})
    assert "token_str" in capsys.readouterr().out


def test_a_finished_folder_is_not_overwritten(told):
    before = (Path(told["out"]) / "result.json").read_bytes()
    with pytest.raises(UserError, match="finished quickstart.*--overwrite"):
        quickstart(told["out"], **SHORT)
    assert (Path(told["out"]) / "result.json").read_bytes() == before


def test_a_folder_of_the_users_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="not empty"):
            quickstart(tmp_path, **SHORT, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_bad_wish_leaves_nothing_behind(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="--minutes must be a number greater than 0"):
        quickstart(tmp_path / "q", minutes=0)
    monkeypatch.setattr(story.python_docs, "collect_pages", _refuse)
    with pytest.raises(UserError, match="no source"):
        quickstart(tmp_path / "q")
    assert not (tmp_path / "q").exists()


def _refuse() -> list:
    raise UserError("no source")


@pytest.mark.slow
def test_interrupted_it_goes_on_where_it_was(tmp_path, monkeypatch, python_pages):
    """Three times: when the speed of the machine is known, before measuring, and at last to the end."""
    asked = {**SHORT, "minutes": None}
    monkeypatch.setattr(story.python_docs, "collect_pages", lambda: python_pages[::8])
    for name, value in {"MINUTES": 0.01, "WARMUP_SECONDS": 0.05, "TIMED_SECONDS": 0.05,
                        "tokens_per_second": lambda tokens, seconds: 100.0}.items():
        monkeypatch.setattr(throughput, name, value)
    with pytest.raises(Interrupted, match="stemma quickstart --out .* goes on"):
        quickstart(tmp_path / "q", **asked, say=lambda text: _interrupt() if "100 tokens per second" in text else None)
    assert read_run(tmp_path / "q/run")[1].budget == Budget("minutes", 0.02)
    written = (tmp_path / "q/train.txt").stat().st_mtime_ns
    monkeypatch.setattr(throughput, "train_and_time", _fail)
    monkeypatch.setattr(cell_runner, "create_run", _fail)
    monkeypatch.setattr(story, "_evaluate", _interrupt)
    with pytest.raises(Interrupted):
        quickstart(tmp_path / "q", **asked)
    with pytest.raises(UserError, match=r"other settings \(--seed 0\)"):
        quickstart(tmp_path / "q", **{**SHORT, "minutes": 9})
    monkeypatch.undo()
    for name in ("train.txt", "held-out.txt"):
        with changed(tmp_path / "q" / name), \
                pytest.raises(UserError, match=f"{name} is damaged or was edited .* add --overwrite"):
            quickstart(tmp_path / "q", **asked)
    monkeypatch.setattr(story, "_pretrain", _fail)
    result = quickstart(tmp_path / "q", **asked)
    assert result["minutes"] == 0.02 and result["speed"]["tokens_per_second"] == 100 and result["masked"]
    assert "--minutes 0.02 " in result["commands"][2]
    assert result["pretraining"]["elapsed_seconds"] >= 1.2
    assert (tmp_path / "q/train.txt").stat().st_mtime_ns == written


@contextmanager
def changed(file: Path) -> Iterator[None]:
    """For as long as this lasts, with a line more."""
    before = file.stat()
    with file.open("a") as end:
        end.write("A line more.\n")
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


def test_any_run_gets_a_report(told, tmp_path):
    run = Path(told["out"]) / "run"
    page = write_report(run).read_text()
    assert f"{told['pretraining']['validation_loss']:.3f}" in page
    assert f"stemma pretrain {story.RECIPE} --corpus" in page
    with pytest.raises(UserError, match="not a run"):
        write_report(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_pretraining_pays(tmp_path):
    result = quickstart(tmp_path / "q", seed=SEED)
    masked, probe = result["masked"], result["probe"]
    assert masked["model"]["accuracy"] > masked["bigram"]["accuracy"]
    gain = np.mean(probe["pre-trained"]["test"]) - np.mean(probe["random"]["test"])
    assert gain > 2 * max(sample_std(probe["random"]["test"]), sample_std(probe["pre-trained"]["test"]))
    assert min(probe["pre-trained"]["test"]) > max(probe["random"]["test"])
    assert result["verdicts"]["n-grams"]["winner"] == "pre-trained"
    assert np.mean(probe["random"]["train"]) > 0.95  # it had the time to learn what it was given
