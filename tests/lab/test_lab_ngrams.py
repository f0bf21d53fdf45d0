"""Tables of counts beside networks in `compare` and `ablate`: no fine-tuning, no warm-up, one pass over the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from stemma.errors import UserError
from stemma.lab.ablation import ablation_variants
from stemma.lab.comparison import compare, compared_variants
from stemma.lab.report.lab_phrases import budget_note, conditions
from stemma.recipe_loading import recipe

SMALL = ["corpus.sequence_length=32", "training.batch_size=8", "tokenizer.vocab_size=300", "training.threads=1"]
RECIPES = ["gpt2@tiny", "ngram@bigram", "ngram@trigram"]


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("task")
    for part in ("train", "dev"):
        (folder / f"{part}.tsv").write_text("text\tlabel\n" + "the old clerk\tyes\na young reader\tno\n" * 4)
    return {"task": ["classify"], "train": [str(folder / "train.tsv")], "dev": [str(folder / "dev.tsv")]}


@pytest.fixture(scope="module")
def lab(tmp_path_factory, text_file, task) -> Path:
    out = tmp_path_factory.mktemp("counts") / "lab"
    compare(RECIPES, str(text_file), out, tokens=30_000, seeds=1, changes=SMALL, epochs=1.0, **task)
    return out


@pytest.fixture(scope="module")
def results(lab, text_file, task):
    """The results of the finished lab, by the same command."""
    return compare(RECIPES, str(text_file), lab, tokens=30_000, seeds=1, changes=SMALL, epochs=1.0, **task)


def test_counts_are_not_fine_tuned_and_the_report_says_why(lab, results):
    scores = {row["variant"]: set(row["scores"]) for row in results["table"]}
    assert results["measures"][0]["key"] == "classify.accuracy"
    assert "classify.accuracy" in scores["gpt2@tiny"] and "bits_per_byte" in scores["gpt2@tiny"]
    for name in ("ngram@bigram", "ngram@trigram"):
        assert "classify.accuracy" not in scores[name] and "bits_per_byte" in scores[name]
        note = f"{name} is not fine-tuned: it is a table of counts, which has no weights."
        assert note in results["notes"] and note in (lab / "report.md").read_text()
    assert all(cell["state"] == "done" for cell in results["cells"])
    assert {(entry["a"], entry["b"]) for entry in results["differences"] if entry["measure"] == "bits_per_byte"} == {
        ("gpt2@tiny", "ngram@bigram"), ("gpt2@tiny", "ngram@trigram"), ("ngram@bigram", "ngram@trigram")}


def test_a_dry_run_with_a_task_estimates_counts_without_fine_tuning(text_file, task, tmp_path):
    plan = compare(["ngram@bigram", "gpt2@tiny"], str(text_file), tmp_path / "lab", tokens=30_000, seeds=1,
                   changes=SMALL, epochs=1.0, dry_run=True, **task)
    assert len(plan["variants"]) == 2


def test_a_task_for_counts_alone_is_refused(text_file, task, tmp_path):
    with pytest.raises(UserError, match="none of these recipes can be fine-tuned"):
        compare(["ngram@bigram", "ngram@trigram"], str(text_file), tmp_path / "lab", tokens=2000, seeds=1, **task)
    assert not (tmp_path / "lab").exists()


def test_a_change_without_effect_on_counts_is_left_out_there():
    changes = ["training.warmup_steps=2", "network.layers=1", "network.width=32", "corpus.sequence_length=64"]
    (network, counts), notes = compared_variants(["gpt2@tiny", "ngram@tiny"], changes, [])
    assert network.recipe.settings.training.warmup_steps == 2 and network.recipe.settings.network.layers == 1
    assert {variant.recipe.settings.corpus.sequence_length for variant in (network, counts)} == {64}
    assert counts.recipe == recipe("ngram@tiny", changes[-1:])
    assert notes == ["training.warmup_steps=2, network.layers=1, network.width=32 have no effect on ngram@tiny and are "
                     "left out there."]


def test_changes_of_the_kind_are_applied_before_others_are_judged():
    """With gradient descent and a stack of layers, nothing is left out."""
    stacked = ["network.depth.kind=stacked", "network.layers=1", "training.method.kind=gradient_descent"]
    assert recipe("ngram@tiny").unused_changes(["training.learning_rate=0.1"]) == ["training.learning_rate=0.1"]
    assert recipe("ngram@tiny").unused_changes([*stacked, "training.learning_rate=0.1"]) == []
    assert recipe("gpt2@tiny").unused_changes(["network.layers=1", "training.learning_rate=0.1"]) == []


def test_a_change_without_effect_on_any_recipe_is_refused():
    with pytest.raises(UserError, match="1 problem in these recipes with your changes") as caught:
        compared_variants(["ngram@bigram", "ngram@trigram"], ["training.warmup_steps=2", "tokenizer.vocab_size=400"],
                          [])
    assert caught.value.problems == [("training.warmup_steps=2", "has no effect on any of them; leave it out")]


def test_an_ablation_leaves_out_changes_without_effect_on_counts():
    variants, details = ablation_variants("ngram", "gpt2", "tiny", ["training.warmup_steps=2"])
    by_role = {variant.role: variant.recipe.settings.training for variant in variants}
    assert by_role["child"].warmup_steps == 2 and by_role["parent"].warmup_steps == 0
    assert details["notes"] == ["training.warmup_steps=2 has no effect on ngram@tiny and is left out there."]


def test_the_advice_about_the_warm_up_can_be_followed(text_file, tmp_path):
    options = {"tokens": 3000, "seeds": 1, "dry_run": True}
    with pytest.raises(UserError) as caught:
        compare(["gpt2@tiny", "ngram@tiny"], str(text_file), tmp_path / "lab", changes=SMALL, **options)
    (name, problem), = caught.value.problems
    advice = problem.rpartition(" ")[2]
    assert name == "gpt2@tiny" and advice.startswith("training.warmup_steps=")
    plan = compare(["gpt2@tiny", "ngram@tiny"], str(text_file), tmp_path / "lab", changes=[*SMALL, advice], **options)
    assert len(plan["variants"]) == 2


def test_the_results_say_how_many_tokens_were_counted(lab, results):
    tokens = {row["variant"]: row["cost"]["tokens"] for row in results["table"]}
    assert tokens["ngram@bigram"] == tokens["ngram@trigram"] < 25_000 < tokens["gpt2@tiny"]
    once = f"({tokens['ngram@bigram']:,.0f} tokens)"
    counted = f"ngram@bigram {once} and ngram@trigram {once} counted the"
    expected = ("Each model except ngram@bigram and ngram@trigram was trained on 30,000 tokens of the same text, at "
                f"sizes tiny, bigram and trigram, with 1 seed. {counted} text, each token once.")
    assert conditions(results) == expected and expected in (lab / "report.md").read_text()
    assert "(gpt2@tiny, seed 0)" in budget_note(results)
    assert budget_note(results).endswith("ngram@bigram and ngram@trigram counted the text once.")
    alone = {**results, "variants": results["variants"][1:], "cells": results["cells"][1:]}
    assert budget_note(alone) == ""
    assert conditions(alone) == f"{counted} same text, each token once, at sizes bigram and trigram, with 1 seed."


@pytest.mark.parametrize(("budget", "counted"), [({"tokens": 30_000}, None), ({"tokens": 2000}, 2000),
                                                 ({"minutes": 1.0}, None)])
def test_the_plan_says_how_many_tokens_are_counted(text_file, tmp_path, results, budget, counted):
    plan = compare(RECIPES[1:], str(text_file), tmp_path / "lab", seeds=1, changes=SMALL[2:3], dry_run=True, **budget)
    once = next(row["cost"]["tokens"] for row in results["table"] if row["variant"] == "ngram@bigram")
    for variant in plan["variants"]:
        assert variant["steps"] == 1 and variant["flops"] == 0
        assert variant["tokens"] == (counted or pytest.approx(once, rel=0.05))  # without the ends of documents
