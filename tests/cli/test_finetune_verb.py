"""`stemma finetune seq2seq`: output, refused input, and the command in the report."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from commands import stemma
from toy_pairs import pairs, save_model, write_pairs

SHORT = ["--steps", "3", "--beams", "1", "training.log_every=1"]


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    save_model(folder / "bart", "bart")
    unique_pairs = list(dict.fromkeys(pairs(100)))
    write_pairs(folder / "train.tsv", unique_pairs[10:])
    write_pairs(folder / "dev.tsv", unique_pairs[:10])
    for name, side in (("dev.en", 0), ("dev.de", 1)):
        (folder / name).write_text("".join(f"{pair[side]}\n" for pair in unique_pairs[:10]))
    return folder


@pytest.fixture
def command(toy) -> list[object]:
    return ["finetune", "seq2seq", "--model", toy / "bart", "--train", toy / "train.tsv", "--dev", toy / "dev.tsv"]


def test_a_run_has_scores_and_its_model_translates(tmp_path, toy, command):
    run = tmp_path / "run"
    test = ["--test", toy / "dev.en", "--test-target", toy / "dev.de"]
    done = stemma(*command, *test, "--out", run, *SHORT, "--json")
    assert done.code == 0, done.err
    assert done.json["task"] == "seq2seq" and done.json["steps"] == 3 and done.json["recipe"] == "bart@tiny"
    dev, test = done.json["metrics"]["dev"], done.json["metrics"]["test"]
    assert {"loss", "bleu", "chrf", "rouge_l", "exact_match", "examples"} < set(dev) and dev["examples"] == 10
    assert {key: value for key, value in dev.items() if key != "loss"} == test  # the same pairs, in other files
    assert done.json["examples_per_second"] > 0
    assert json.loads((run / "result.json").read_text()) == done.json
    again = stemma("resume", run, "--json")
    assert (again.code, again.json) == (0, done.json) and "is finished" in again.err

    expected = [json.loads(line)["text"] for line in (run / "dev.jsonl").read_text().splitlines()]
    translated = stemma("translate", run, toy / "dev.en", "--beams", 1, "--max-length-ratio", 0, "--max-extra", 3,
                        "--json")
    assert [translation["text"] for translation in translated.json["translations"]] == expected
    assert "fine-tuning (seq2seq) run" in (run / "report.html").read_text()


def test_the_printed_result_has_a_line_for_each_split(tmp_path, command):
    done = stemma(*command, "--out", tmp_path / "run", *SHORT)
    assert done.code == 0 and "dev · BLEU" in done.out and "|tok:13a|" in done.out
    assert f"stemma translate {tmp_path}/run --text" in done.out


def test_the_command_in_the_report_repeats_the_run(tmp_path, command):
    from stemma.lab.report.run_html import run_command
    from stemma.training.run_folder import read_run

    stemma(*command, "--prefix", "first : ", "--seed", 4, "--out", tmp_path / "one", *SHORT)
    words = shlex.split(run_command(*read_run(tmp_path / "one"), tmp_path / "one"))
    words[words.index("--out") + 1] = str(tmp_path / "two")
    assert stemma(*words[1:]).code == 0
    first, second = ((tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert first == second


def test_a_plan_trains_and_scores_several_tasks(tmp_path, toy, command):
    plan = toy / "plan.toml"
    plan.write_text("temperature = 2.0\n" + "".join(
        f'[[task]]\nname = "{name}"\ntrain = "train.tsv"\ndev = "dev.tsv"\n' for name in ("first", "second")))
    done = stemma(*command[:4], "--tasks", plan, "--out", tmp_path / "run", *SHORT, "--json")
    assert done.code == 0, done.err
    assert set(done.json["metrics"]["dev"]["tasks"]) == {"first", "second"}
    assert "sampling rates of the tasks: first 50.0%, second 50.0%." in done.err
    printed = stemma(*command[:4], "--tasks", plan, "--out", tmp_path / "other", *SHORT)
    assert printed.out.count("dev, ") == 2
    refused = stemma(*command, "--tasks", plan, "--out", tmp_path / "third")
    assert refused.code == 2 and "--tasks says all about its tasks; leave out --train, --dev" in refused.err


@pytest.mark.parametrize(("words", "message"), [
    (["seq2sec"], 'no task "seq2sec". Did you mean "seq2seq"?'),
    (["seq2seq", "--model", "MODEL"], "missing option '--out'"),
    (["seq2seq", "--model", "MODEL", "--out", "OUT"], "--train and --dev are missing"),
    (["seq2seq", "--model", "MODEL", "--out", "OUT", "--train", "TRAIN"], "--dev is missing"),
    (["seq2seq", "--model", "MODEL", "--out", "OUT", "--train", "TRAIN", "--dev", "none.tsv"], "none.tsv"),
    (["seq2seq", "--model", "MODEL", "--out", "OUT", "--train", "TRAIN", "--dev", "-"], "- can be read only once"),
    (["seq2seq", "--model", "MODEL", "--out", "OUT", "--train", "TRAIN", "--dev", "DEV", "--test-target", "DEV"],
     "--test-target is the other side of --test, which is missing"),
    (["seq2seq", "--model", "nowhere", "--out", "OUT", "--train", "TRAIN", "--dev", "DEV"], "no model at nowhere"),
    (["seq2seq", "--model", "MODEL", "--out", "OUT", "--train", "TRAIN", "--dev", "DEV", "--beams", "0"], "--beams"),
    (["seq2seq", "--model", "MODEL", "--out", "OUT", "--train", "TRAIN", "--dev", "DEV", "network.width=64"],
     "network.width = 64"),
    (["seq2seq", "--model", "MODEL", "--out", "OUT", "--train", "TRAIN", "--dev", "DEV", "training.lr=1"],
     "no such key"),
    (["seq2seq", "--model", "MODEL", "--out", "OUT", "--train", "TRAIN", "--dev", "DEV", "--columns", "a,b"],
     "has no column a and no column b"),
])
def test_bad_input_is_refused_and_leaves_no_files(tmp_path, toy, words, message):
    paths = {"MODEL": toy / "bart", "OUT": tmp_path / "run", "TRAIN": toy / "train.tsv", "DEV": toy / "dev.tsv"}
    refused = stemma("finetune", *(paths.get(word, word) for word in words), "--json")
    assert refused.code == 2 and refused.err.startswith("error: ") and message in refused.err, refused.err
    assert "error" in refused.json and not list(tmp_path.iterdir())


def test_help_shows_examples():
    shown = stemma("finetune", "seq2seq", "--help")
    assert shown.code == 0 and shown.out.count("Example: stemma finetune seq2seq") == 4
