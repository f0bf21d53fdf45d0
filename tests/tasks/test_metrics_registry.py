"""Finding metrics by kind and name, bootstrap intervals, and early errors for missing libraries."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from stemma.errors import UserError
from stemma.tasks.kinds import example_kinds, task_kinds
from stemma.tasks.metrics import bootstrap_interval, check_metrics, compute_scores, metrics_for
from stemma.tasks.metrics.bleu_rouge import summary_scores, translation_scores


def test_every_kind_of_task_has_metrics():
    by_kind = {kind: metrics_for(kind) for kind in task_kinds()}
    assert set(by_kind) == {*example_kinds(), "seq2seq"}
    for kind, metrics in by_kind.items():
        assert metrics and all(name == metric.name and metric.description for name, metric in metrics.items()), kind
    lower = [name for metrics in by_kind.values() for name, metric in metrics.items() if not metric.higher_is_better]
    assert lower == ["mean_squared_error"]
    assert by_kind["qa"]["f1"].scale == 100 and by_kind["tag"]["f1"].scale == by_kind["classify"]["f1"].scale == 1
    assert by_kind["qa"]["f1"].prediction_type == "spans" and by_kind["rank"]["map"].prediction_type == "scores"


def test_all_unknown_names_are_reported_together():
    with pytest.raises(UserError, match='no kind of task "classfy".*Did you mean "classify"'):
        check_metrics("classfy", ("f1",))
    with pytest.raises(UserError, match="pair has no such metric; choose among accuracy, f1, ") as caught:
        check_metrics("pair", ("acuracy", "f1", "loss"))
    assert [what for _, what in caught.value.problems] == ['"acuracy" Did you mean "accuracy"?', '"loss"']


@pytest.mark.parametrize(("kind", "name", "module", "package"), [
    ("tag", "f1", "seqeval.scheme", "seqeval"), ("seq2seq", "rouge_l", "rouge_score.rouge_scorer", "rouge-score")])
def test_a_missing_library_is_reported_before_scoring(monkeypatch, kind, name, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf'this metric needs {package}: pip install "stemma-lm\[metrics\]"'):
        check_metrics(kind, (name,))
    check_metrics("classify", ("accuracy",))  # accuracy needs nobody


def test_libraries_are_imported_on_first_use():
    code = ("import sys, stemma.tasks.metrics as metrics\n"
            "metrics.compute_scores('choice', ('accuracy',), [1, 0], [1, 1])\n"
            "metrics.compute_scores('qa', ('f1',), [['red']], ['red'])\n"
            "sys.exit(str([name for name in ('torch', 'sklearn', 'scipy', 'seqeval', 'nltk') if name in sys.modules]))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == "[]"


def test_unscorable_inputs_are_rejected():
    with pytest.raises(UserError, match="nothing to score"):
        compute_scores("classify", ("accuracy",), [], [])
    with pytest.raises(UserError, match="there are 2 examples and 1 predictions"):
        compute_scores("classify", ("accuracy",), ["a", "b"], ["a"])
    with pytest.raises(UserError, match="1 of 2 examples have no label to compare with"):
        compute_scores("classify", ("accuracy",), ["a", None], ["a", "b"])


def test_generated_text_is_scored_by_the_same_libraries():
    gold = ["the old clerk copies a letter", "the printer reads"]
    predicted = ["the old clerk copies letters", "the printer reads"]
    scores = compute_scores("seq2seq", ("bleu", "chrf", "rouge_l", "exact_match"), gold, predicted)
    words = translation_scores(predicted, [gold])
    assert scores == {"bleu": words["bleu"]["score"], "chrf": words["chrf"]["score"],
                     "rouge_l": summary_scores(predicted, [gold])["rougeL"], "exact_match": 50}
    several = compute_scores("seq2seq", ("bleu", "exact_match"), [[gold[0], predicted[0]], [gold[1]]], predicted)
    assert several == pytest.approx({"bleu": 100, "exact_match": 100})
    short = ["the old clerk copies a letter", "the printer"]  # too short for its one reference, for none of nothing
    assert (compute_scores("seq2seq", ("bleu",), [[gold[0], predicted[0]], [gold[0]]], short)
            == compute_scores("seq2seq", ("bleu",), [[gold[0], predicted[0]], [gold[0], gold[0]]], short))
    chinese = compute_scores("seq2seq", ("bleu",), ["猫坐在垫子上"], ["猫坐在垫子上面"])["bleu"]
    assert chinese == translation_scores(["猫坐在垫子上面"], [["猫坐在垫子上"]], tokenize="zh")["bleu"]["score"] > 50


def test_the_interval_of_an_accuracy_is_close_to_the_normal_approximation():
    """70 of 100 are correct: the normal approximation is 0.7 +- 1.96 * sqrt(0.7 * 0.3 / 100) = 0.61 to 0.79."""
    gold, predicted = ["1"] * 100, ["1"] * 70 + ["0"] * 30
    low, high = bootstrap_interval("classify", "accuracy", gold, predicted, seed=4, rounds=4000)
    assert low == pytest.approx(0.61, abs=0.012) and high == pytest.approx(0.79, abs=0.012)
    assert bootstrap_interval("classify", "accuracy", gold, predicted, seed=4, rounds=4000) == (low, high)
    assert bootstrap_interval("qa", "exact_match", [["a b"]] * 4, ["a b"] * 4) == (100, 100)


@pytest.mark.parametrize(("kind", "name"), [("classify", "matthews"), ("regress", "spearman"), ("rank", "map")])
def test_bootstrap_intervals_equal_scoring_every_round(kind, name):
    rng = np.random.default_rng(0)
    size, extras = 120, {}
    if kind == "regress":
        gold = rng.normal(size=size)
        predicted = gold + rng.normal(size=size)
    else:
        gold = rng.integers(2, size=size)
        predicted = np.where(rng.random(size) < 0.75, gold, 1 - gold) + (rng.random(size) if kind == "rank" else 0)
    if kind == "rank":
        extras = {"groups": [str(index // 4) for index in range(size)]}
    fast = bootstrap_interval(kind, name, gold, predicted, rounds=1500, **extras)
    alone = []
    for _ in range(300):
        rows = rng.integers(size, size=size)
        if kind == "rank":  # whole queries are drawn, and one drawn twice is two queries
            queries = rng.integers(size // 4, size=size // 4)
            rows = (queries[:, None] * 4 + np.arange(4)).ravel()
        alone.append(compute_scores(kind, (name,), gold[rows], predicted[rows], **extras)[name])
    low, high = np.quantile(alone, [0.025, 0.975])
    assert fast == pytest.approx((low, high), abs=0.15 * (high - low))


def test_a_corpus_level_metric_has_an_interval():
    gold = ["the clerk reads a letter", "the printer sleeps", "our neighbour counts seven pages"]
    predicted = ["the clerk reads a letter", "a printer sleeps", "our neighbour counts pages"]
    low, high = bootstrap_interval("seq2seq", "chrf", gold, predicted, rounds=40)
    assert low < compute_scores("seq2seq", ("chrf",), gold, predicted)["chrf"] < high <= 100
