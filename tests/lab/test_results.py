"""Differences and contributions from scores written by hand: nothing is trained."""

from __future__ import annotations

import pytest

from stemma.lab.experiment import ComputeBudget, Experiment, Score, Variant
from stemma.lab.held_out_likelihood import METRICS, PSEUDO
from stemma.lab.report import lab_phrases as words
from stemma.lab.results import ONE_PERCENT_POINT, PairwiseDifferences, _contributions, experiment_metrics
from stemma.recipe_loading import recipe

METRIC = METRICS[PSEUDO]


def experiment(*variants: Variant, kind: str = "compare", seeds: int = 3, **more) -> Experiment:
    return Experiment(kind, "t", variants, ComputeBudget("tokens", 10), tuple(range(seeds)), None, ("t.txt",), **more)


def compared(compared_experiment: Experiment, scores: dict[str, list[float]]) -> PairwiseDifferences:
    cells = {(name, seed): {PSEUDO: Score(value)} for name, values in scores.items()
             for seed, value in enumerate(values)}
    return PairwiseDifferences(compared_experiment, [METRIC], cells, {key: str(key) for key in cells})


def ablation(seeds: int = 3) -> Experiment:
    bert, roberta = recipe("bert@tiny"), recipe("roberta@tiny")
    return experiment(Variant("p", bert, "parent"), Variant("c", roberta, "child"),
                      Variant("p + x", bert, "plus", "x"), Variant("c - x", roberta, "minus", "x"), kind="ablate",
                      seeds=seeds, details={"groups": [{"name": "x", "keys": ["~ x"]}]})


def test_a_change_has_the_same_contribution_added_to_the_parent_and_removed_from_the_child():
    """It takes 1 bit off the parent, and without it the child has 1 bit more: the contribution is -1 on both sides."""
    lab_experiment = ablation()
    (row,), remainder = _contributions(lab_experiment, METRIC, compared(lab_experiment, {
        "p": [4.0, 4.1, 4.2], "c": [2.0, 2.1, 2.2], "p + x": [3.01, 3.1, 3.19], "c - x": [3.01, 3.1, 3.19]}))
    assert row["added"]["mean"] == pytest.approx(-1) and row["undone"]["mean"] == pytest.approx(-1)
    assert row["added"]["verdict"] == row["undone"]["verdict"] == words.contribution_verdict(row) == "better"
    assert row["mean"] == pytest.approx(-1) and remainder == pytest.approx(-1)  # of -2 in all


def test_scores_are_paired_by_seed():
    """The variance between seeds is far larger than the difference between the recipes of one seed."""
    lab_experiment = experiment(Variant("a", recipe("bert@tiny")), Variant("b", recipe("bert@mini")))
    difference = compared(lab_experiment, {"a": [1.0, 5.0, 9.0], "b": [1.49, 5.5, 9.51]}).between(METRIC, "a", "b")
    assert difference.verdict == "worse" and difference.high - difference.low < 0.1
    missing = compared(lab_experiment, {"a": [1.0, 5.0, 9.0], "b": [1.49, 5.5, 9.51]})
    del missing.scores["a", 1]
    again = PairwiseDifferences(lab_experiment, [METRIC], missing.scores, missing.digests).between(METRIC, "a", "b")
    assert again.seeds == 2 and again.mean == pytest.approx(0.5)  # only seeds of both


def test_comparisons_by_one_metric_are_corrected_together():
    variants = [Variant(name, recipe("bert@tiny")) for name in "abcd"]
    scores = {"a": [0.0, 0.0, 0.0], "b": [0.9, 1.0, 1.3], "c": [0.4, 1.1, 0.5], "d": [0.3, -0.4, 0.2]}
    differences = compared(experiment(*variants), scores).all()
    assert len(differences) == 6 and {difference.comparisons for *_, difference in differences} == {6}
    alone = compared(experiment(*variants[:2]), {name: scores[name] for name in "ab"}).all()[0][-1]
    assert alone.verdict == "worse" and alone.comparisons == 1
    among = next(difference for _, a, b, difference in differences if (a, b) == ("a", "b"))
    assert among.verdict == "inconclusive" and among.p > alone.p and among.low == alone.low > 0
    assert "significant alone but not among 6 comparisons" in words.format_verdict(vars(among))


def test_a_difference_notes_that_one_side_is_lowercased():
    bert, roberta = recipe("bert@tiny"), recipe("roberta@tiny")
    assert bert.settings.tokenizer.lowercase and not roberta.settings.tokenizer.lowercase
    scores = {"bert": [3.0, 3.01, 3.02], "roberta": [3.2, 3.21, 3.22], "other": [3.1, 3.2, 3.3]}
    lab_experiment = experiment(Variant("bert", bert), Variant("roberta", roberta), Variant("other", bert))
    notes = {(a, b): difference.note for _, a, b, difference in compared(lab_experiment, scores).all()}
    assert notes["bert", "roberta"].startswith("bert is lowercased") and notes["bert", "other"] is None
    assert notes["roberta", "other"].startswith("other is lowercased")
    one_corpus = Experiment("compare", "t", lab_experiment.variants, lab_experiment.allowance, lab_experiment.seeds,
                            "corpus", ())
    assert all(difference.note is None for *_, difference in compared(one_corpus, scores).all())


def test_an_experiment_may_set_its_own_margin():
    lab_experiment = experiment(Variant("a", recipe("bert@tiny")), Variant("b", recipe("bert@tiny")), margin=0.2)
    assert [metric.margin for metric in experiment_metrics(lab_experiment, [PSEUDO, "validation_loss"])] == [0.2, 0.01]
    assert METRIC.margin == ONE_PERCENT_POINT == 0.01
