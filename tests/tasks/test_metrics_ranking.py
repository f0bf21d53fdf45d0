"""MAP, MRR and precision at 1, as trec_eval counts them."""

from __future__ import annotations

import pytest

from stemma.errors import UserError
from stemma.tasks.metrics import compute_scores

NAMES = ("map", "mrr", "precision_at_1")


def test_by_hand():
    # query a: relevant at places 1 and 3; query b: at 2; its candidates stand among each other's in the file
    groups = ["a", "b", "a", "b", "a"]
    scores = compute_scores("rank", NAMES, ["1", "0", "0", "1", "1"], [0.9, 0.8, 0.5, 0.7, 0.1], groups=groups)
    assert scores["map"] == pytest.approx(((1 / 1 + 2 / 3) / 2 + 1 / 2) / 2)
    assert scores["mrr"] == pytest.approx((1 + 1 / 2) / 2) and scores["precision_at_1"] == 0.5


def test_a_query_without_a_relevant_candidate_counts_as_zero():
    scores = compute_scores("rank", NAMES, [1, 0, 0, 0], [2.0, 1.0, 2.0, 1.0], groups=["a", "a", "b", "b"])
    assert scores == {"map": 0.5, "mrr": 0.5, "precision_at_1": 0.5}


def test_a_grade_of_one_or_more_is_relevant():
    assert compute_scores("rank", ("mrr",), [0.5, 1, 2], [3, 2, 1], groups=["a"] * 3) == {"mrr": 0.5}


def test_ties_are_broken_as_in_trec_eval():
    gold, same, groups = [1, 0, 0, 0], [0.3] * 4, ["a"] * 4
    assert compute_scores("rank", NAMES, gold, same, groups=groups) == {"map": 1 / 4, "mrr": 1 / 4, "precision_at_1": 0}
    # with ids the greatest comes first, compared as text: d9 before d10
    assert compute_scores("rank", ("mrr",), gold, same, groups=groups, ids=["d9", "d10", "d2", "d1"]) == {"mrr": 1}
    assert compute_scores("rank", ("mrr",), gold, same, groups=groups, ids=["d10", "d9", "d2", "d1"]) == {"mrr": 1 / 3}
    # a better score counts for more than any id
    assert compute_scores("rank", ("mrr",), gold, [0.4, *same[1:]], groups=groups,
                          ids=["a", "b", "c", "d"]) == {"mrr": 1}


def test_unscorable_inputs_are_rejected():
    with pytest.raises(UserError, match="1 of 2 candidates belong to no query"):
        compute_scores("rank", NAMES, [1, 0], [1, 0], groups=["a", None])
    with pytest.raises(UserError, match="there are 2 candidates and 1 queries"):
        compute_scores("rank", NAMES, [1, 0], [1, 0], groups=["a"])
    with pytest.raises(UserError, match="1 of the 2 scores are infinite or not a number"):
        compute_scores("rank", NAMES, [1, 0], [1, float("nan")], groups=["a", "a"])
