"""`compare`, `ablate` and `claims`: the printed plan and the printed verdict."""

from __future__ import annotations

import pytest

from stemma.cli import main
from stemma.cli.compare_ablate import show_plan
from stemma.lab.report.lab_phrases import CLAIM_VERDICTS


def test_the_printed_plan_lists_excluded_changes_and_variants_that_are_not_possible(capsys):
    variant = {"variant": "bert@tiny", "steps": 1, "tokens": 2000, "flops": 1e9, "parameters": 4e6, "seconds": 60}
    details = {"hidden": [{"key": "training.steps", "why": "the budget sets it"}],
               "impossible": [{"variant": "bert@tiny + tokenizer", "why": "the corpus has its own"}]}
    show_plan({"title": "bert -> roberta", "cells": 2, "seeds": [0, 1], "seconds": 120, "variants": [variant],
               "details": details}, processes=1)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == ["bert -> roberta", "2 cells: 2 seeds of"]
    assert lines[2].startswith("bert@tiny   1 step   2,000 ")
    assert lines[3] == "excluded change: training.steps: the budget sets it"
    assert lines[4] == "not possible: bert@tiny + tokenizer: the corpus has its own"
    assert lines[5].startswith("estimated time: ") and lines[5].endswith(" with 1 process")


@pytest.mark.parametrize("verdict", CLAIM_VERDICTS)
def test_the_verdict_of_a_claim_is_printed_in_words(verdict, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("stemma.lab.claims.claim_experiment", lambda *arguments, **options: None)
    monkeypatch.setattr("stemma.lab.results.check_metric", lambda experiment: None)
    monkeypatch.setattr("stemma.cli.claims.finish", lambda *arguments: None)
    monkeypatch.setattr("stemma.lab.run_experiment.run_experiment",
                        lambda *arguments, **options: {"claim": {"verdict": verdict, "text": "the difference."}})
    assert main(["claims", "run", "masks", "--out", str(tmp_path / "lab")]) == 0
    assert f"\n{CLAIM_VERDICTS[verdict]}: the difference.\n" in capsys.readouterr().out


def test_no_baseline_needs_a_task(capsys, tmp_path):
    command = ["compare", "bert@tiny", "gpt2@tiny", "--corpus", "notes.txt", "--tokens", "1000", "--out", str(tmp_path)]
    assert main([*command, "--no-baseline"]) == 2
    assert "--no-baseline is about the scores of a --task" in capsys.readouterr().err
