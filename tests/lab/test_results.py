"""What is made of the cells' scores, with scores given by hand: nothing is trained."""

from __future__ import annotations

import pytest

from stemma.lab.experiment import ComputeBudget, Experiment, Score, Variant
from stemma.lab.held_out_likelihood import METRICS, PSEUDO
from stemma.lab.report import lab_phrases as words
from stemma.lab.results import ONE_PERCENT_POINT, PairwiseDifferences, _contributions, experiment_metrics
from stemma.recipe_loading import recipe

MEASURE = METRICS[PSEUDO]


def experiment(*variants: Variant, kind: str = "compare", seeds: int = 3, **more) -> Experiment:
    return Experiment(kind, "t", variants, ComputeBudget("tokens", 10), tuple(range(seeds)), None, ("t.txt",), **more)


def compared(asked: Experiment, scores: dict[str, list[float]]) -> PairwiseDifferences:
    cells = {(name, seed): {PSEUDO: Score(value)} for name, values in scores.items()
             for seed, value in enumerate(values)}
    return PairwiseDifferences(asked, [MEASURE], cells, {key: str(key) for key in cells})


def ablation(seeds: int = 3) -> Experiment:
    bert, roberta = recipe("bert@tiny"), recipe("roberta@tiny")
    return experiment(Variant("p", bert, "parent"), Variant("c", roberta, "child"),
                      Variant("p + x", bert, "plus", "x"), Variant("c - x", roberta, "minus", "x"), kind="ablate",
                      seeds=seeds, details={"groups": [{"name": "x", "keys": ["~ x"]}]})


def test_a_change_is_worth_the_same_added_and_undone():
    """It takes 1 bit off the parent, and without it the child has 1 bit more: both say that it helps, by -1."""
    asked = ablation()
    (row,), remainder = _contributions(asked, MEASURE, compared(asked, {
        "p": [4.0, 4.1, 4.2], "c": [2.0, 2.1, 2.2], "p + x": [3.01, 3.1, 3.19], "c - x": [3.01, 3.1, 3.19]}))
    assert row["added"]["mean"] == pytest.approx(-1) and row["undone"]["mean"] == pytest.approx(-1)
    assert row["added"]["verdict"] == row["undone"]["verdict"] == words.contribution_verdict(row) == "better"
    assert row["mean"] == pytest.approx(-1) and remainder == pytest.approx(-1)  # of -2 in all


def test_seeds_are_paired_with_themselves():
    """Seeds differ by far more than the recipes; only the same seed's difference shows what the recipe does."""
    asked = experiment(Variant("a", recipe("bert@tiny")), Variant("b", recipe("bert@mini")))
    one = compared(asked, {"a": [1.0, 5.0, 9.0], "b": [1.49, 5.5, 9.51]}).between(MEASURE, "a", "b")
    assert one.verdict == "worse" and one.high - one.low < 0.1
    missing = compared(asked, {"a": [1.0, 5.0, 9.0], "b": [1.49, 5.5, 9.51]})
    del missing.scores["a", 1]
    again = PairwiseDifferences(asked, [MEASURE], missing.scores, missing.digests).between(MEASURE, "a", "b")
    assert again.seeds == 2 and again.mean == pytest.approx(0.5)              # the seeds that both have


def test_comparisons_by_one_measure_are_corrected_together():
    variants = [Variant(name, recipe("bert@tiny")) for name in "abcd"]
    scores = {"a": [0.0, 0.0, 0.0], "b": [0.9, 1.0, 1.3], "c": [0.4, 1.1, 0.5], "d": [0.3, -0.4, 0.2]}
    found = compared(experiment(*variants), scores).all()
    assert len(found) == 6 and {one.comparisons for *_, one in found} == {6}
    alone = compared(experiment(*variants[:2]), {name: scores[name] for name in "ab"}).all()[0][-1]
    assert alone.verdict == "worse" and alone.comparisons == 1
    among = next(one for _, a, b, one in found if (a, b) == ("a", "b"))
    assert among.verdict == "inconclusive" and among.p > alone.p and among.low == alone.low > 0
    assert "significant alone but not among 6 comparisons" in words.format_verdict(vars(among))


def test_capitals_that_one_side_drops_are_said_beside_the_number():
    bert, roberta = recipe("bert@tiny"), recipe("roberta@tiny")
    assert bert.settings.tokenizer.lowercase and not roberta.settings.tokenizer.lowercase
    scores = {"bert": [3.0, 3.01, 3.02], "roberta": [3.2, 3.21, 3.22], "other": [3.1, 3.2, 3.3]}
    asked = experiment(Variant("bert", bert), Variant("roberta", roberta), Variant("other", bert))
    found = {(a, b): one.note for _, a, b, one in compared(asked, scores).all()}
    assert found["bert", "roberta"].startswith("bert is lowercased") and found["bert", "other"] is None
    assert found["roberta", "other"].startswith("other is lowercased")
    given = Experiment("compare", "t", asked.variants, asked.allowance, asked.seeds, "corpus", ())  # one tokenizer
    assert all(one.note is None for *_, one in compared(given, scores).all())


def test_a_margin_of_ones_own():
    asked = experiment(Variant("a", recipe("bert@tiny")), Variant("b", recipe("bert@tiny")), margin=0.2)
    assert [one.margin for one in experiment_metrics(asked, [PSEUDO, "validation_loss"])] == [0.2, 0.01]
    assert MEASURE.margin == ONE_PERCENT_POINT == 0.01
