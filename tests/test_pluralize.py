"""Counts with their unit: "1 step", "2 steps"."""

from __future__ import annotations

import pytest

from stemma.cli import main
from stemma.cli.pretrain import finish
from stemma.errors import pluralize
from stemma.lab.quickstart.verdict import verdicts
from stemma.training.budget import Budget


@pytest.mark.parametrize(("count", "expected"), [(0, "0 steps"), (1, "1 step"), (1.0, "1 step"), (2, "2 steps"),
                                             (0.5, "0.5 steps"), (1200, "1,200 steps")])
def test_pluralize_formats_counts(count, expected):
    assert pluralize(count, "step") == expected


def test_pluralize_takes_an_irregular_plural():
    assert [pluralize(count, "process", "processes") for count in (1, 2)] == ["1 process", "2 processes"]


@pytest.mark.parametrize(("unit", "amount", "expected"), [
    ("steps", 1, "1 step"), ("steps", 1000, "1,000 steps"), ("tokens", 1.0, "1 token"),
    ("tokens", 3e6, "3,000,000 tokens"),
    ("minutes", 1, "1 minute"), ("minutes", 1.0, "1 minute"), ("minutes", 2.5, "2.5 minutes"),
    ("minutes", 10.0, "10 minutes")])
def test_budgets_are_described_with_units(unit, amount, expected):
    assert Budget(unit, amount).describe() == expected


def test_the_summary_of_a_run_of_one_step_is_singular(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("stemma.lab.report.run_html.try_report", lambda run: None)
    monkeypatch.setattr("stemma.cli.pretrain._usage_hint", lambda run: "predict run FILE")
    finish({"recipe": "bert@tiny", "steps": 1, "tokens": 1, "seconds": 1.0, "tokens_per_second": 1.0, "run": "run",
            "metrics": {"dev": {"accuracy": 1.0, "examples": 1}}}, tmp_path, False)
    output = capsys.readouterr().out
    assert "1 step, 1 token in" in output and "1 example\n" in output


def test_the_summary_of_a_corpus_of_one_document_is_singular(capsys, tmp_path, tokenizer_folder):
    (tmp_path / "a.txt").write_text("the old clerk reads a letter.")
    assert main(["corpus", "build", str(tmp_path / "a.txt"), "--tokenizer", str(tokenizer_folder), "--workers", "1",
                 "--out", str(tmp_path / "corpus")]) == 0
    assert ", 1 sentence, 1 document, " in capsys.readouterr().out


def test_the_verdict_of_one_label_and_one_seed_is_singular():
    numbers = {"accuracy": 0.5, "loss": 1.0}
    result = verdicts({"labels": 1, "masked": dict.fromkeys(("unigram", "bigram", "two-sided", "model"), numbers),
                       "probe": {"random": {"test": [0.5]}, "n-grams": {"test": [0.5]},
                                 "pre-trained": {"test": [0.6]}}})
    assert result["probe"]["said"].endswith("in 1 seed: test accuracy 0.600 against 0.500 after 1 label.")
