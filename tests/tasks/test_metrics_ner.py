"""Entity scores by seqeval: strict in the scheme of the tags, or as conlleval."""

from __future__ import annotations

import random

import numpy as np
import pytest
from seqeval import scheme as schemes
from seqeval.metrics import classification_report, f1_score, precision_score, recall_score

from stemma.errors import UserError
from stemma.tasks.metrics import compute_scores, entity_table, metrics_for
from stemma.tasks.metrics.ner import detect_scheme, metric_inputs

NAMES = ("f1", "precision", "recall", "conll_f1", "accuracy")
GOLD = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG", "I-ORG"]]


def test_precision_recall_and_f1_equal_values_by_hand():
    # a person cut short, a place found, an organisation without its start, which conlleval takes for one all the same
    predicted = [["B-PER", "O", "O", "B-LOC"], ["O", "I-ORG", "I-ORG"]]
    scores = compute_scores("tag", NAMES, GOLD, predicted)
    assert scores["precision"] == pytest.approx(1 / 2) and scores["recall"] == pytest.approx(1 / 3)
    assert scores["f1"] == pytest.approx(2 / 5)
    assert scores["conll_f1"] == pytest.approx(4 / 6)
    assert scores["accuracy"] == pytest.approx(5 / 7)


def test_entity_table_has_scores_per_entity_type():
    predicted = [["B-PER", "I-PER", "O", "B-PER"], ["O", "B-ORG", "O"]]
    nothing = {"precision": 0, "recall": 0, "f1": 0}
    assert entity_table(GOLD, predicted) == {
        "LOC": {**nothing, "support": 1}, "ORG": {**nothing, "support": 1},
        "PER": {"precision": 0.5, "recall": 1, "f1": pytest.approx(2 / 3), "support": 1}}


def test_the_scheme_is_detected_from_the_tags():
    assert detect_scheme(GOLD) == "IOB2"
    assert detect_scheme([["I-PER", "I-PER", "B-PER", "O", "I-LOC"]]) == "IOB1"
    assert detect_scheme([["B-PER", "I-PER", "E-PER", "S-LOC"]]) == "BIOES"
    assert detect_scheme([["B-PER", "L-PER", "U-LOC"]]) == "BILOU"
    assert detect_scheme([["O", "O"]], [["S-LOC", "O"]]) == "BIOES"  # nothing to see in the right tags
    assert detect_scheme([["B-PER", "I-PER"], ["O", "I-PER"]]) == "conlleval"  # neither IOB1 nor IOB2
    assert detect_scheme([["B-PER", "I-LOC"]]) == "conlleval" and detect_scheme([["B-PER", "B-PER"]]) == "IOB2"
    assert detect_scheme([["B-PER", "L-PER", "S-LOC"]]) == "conlleval"


def test_a_given_scheme_overrides_detection():
    gold, predicted = [["I-PER", "O", "I-LOC"]], [["I-PER", "O", "B-LOC"]]
    assert compute_scores("tag", ("f1",), gold, predicted)["f1"] == pytest.approx(2 / 3)  # as IOB1, B is wrong
    assert compute_scores("tag", ("f1",), gold, predicted, scheme="conlleval")["f1"] == 1
    assert entity_table(gold, predicted, scheme="conlleval")["LOC"]["f1"] == 1
    with pytest.raises(UserError, match='no scheme "BIOSE" of tags; .*Did you mean "BIOES"'):
        compute_scores("tag", ("f1",), gold, predicted, scheme="BIOSE")


def test_gold_tags_that_violate_their_scheme_are_read_as_conlleval():
    mixed = [["B-PER", "I-PER", "O", "I-PER"]]  # as in BC5CDR
    for scheme in (None, "IOB1", "IOB2"):
        assert compute_scores("tag", ("f1", "recall"), mixed, mixed, scheme=scheme) == {"f1": 1, "recall": 1}


def test_tags_without_entities_are_scored_by_accuracy_only():
    gold, predicted = [["DET", "NOUN", "O"], ["VERB"]], [["DET", "VERB", "O"], ["VERB"]]
    assert detect_scheme(gold) == "plain"
    assert compute_scores("tag", ("accuracy",), gold, predicted) == {"accuracy": 0.75}
    for name in ("f1", "conll_f1"):
        with pytest.raises(UserError, match="mark no entities; the metric of such tags is accuracy"):
            compute_scores("tag", (name,), gold, predicted)


@pytest.mark.parametrize(("gold", "predicted", "expected"), [
    (["I-PER", "B-PER", "I-LOC"], ["I-PER", "I-PER", "I-LOC"], 2 / 5),  # IOB1: B parts neighbours
    (["I-PER", "O", "I-PER"], ["B-PER", "O", "I-PER"], 2 / 3),          # IOB1: B only after its own type
    (["B-PER", "E-PER", "S-LOC"], ["B-PER", "I-PER", "S-LOC"], 2 / 3),  # BIOES: an entity must end
    (["B-PER", "E-PER", "S-LOC"], ["B-PER", "E-PER", "B-LOC"], 2 / 3)])
def test_strict_scoring_works_in_every_scheme(gold, predicted, expected):
    assert compute_scores("tag", ("f1",), [gold], [predicted])["f1"] == pytest.approx(expected)


def random_tags(rng: random.Random, letters: str, sentences: int = 60) -> list[list[str]]:
    return [[rng.choice(["O", *(f"{letter}-{kind}" for letter in letters for kind in ("PER", "LOC"))])
             for _ in range(rng.randint(1, 9))] for _ in range(sentences)]


@pytest.mark.parametrize(("letters", "scheme"), [("BI", None), ("BIES", schemes.IOBES), ("BILU", schemes.BILOU)])
def test_scores_equal_those_of_seqeval(letters, scheme):
    rng = random.Random(5)
    gold = random_tags(rng, letters)
    predicted = [[tag if rng.random() < 0.7 else rng.choice(tags) for tag in tags] for tags in gold]
    how = {"mode": "strict", "scheme": scheme} if scheme else {}  # random tags of B and I follow no scheme
    scores = compute_scores("tag", NAMES, gold, predicted)
    assert scores["f1"] == pytest.approx(f1_score(gold, predicted, **how)) and 0 < scores["f1"] < 1
    assert scores["precision"] == pytest.approx(precision_score(gold, predicted, **how))
    assert scores["recall"] == pytest.approx(recall_score(gold, predicted, **how))
    same = [[[tag.replace("L-", "E-").replace("U-", "S-") for tag in tags] for tags in side]
            for side in (gold, predicted)]
    assert scores["conll_f1"] == pytest.approx(f1_score(*same))
    report = classification_report(gold, predicted, output_dict=True, **how)
    for kind, row in entity_table(gold, predicted).items():
        assert row == pytest.approx({"precision": report[kind]["precision"], "recall": report[kind]["recall"],
                                     "f1": report[kind]["f1-score"], "support": report[kind]["support"]})


@pytest.mark.parametrize("name", NAMES)
def test_each_bootstrap_round_is_the_score_of_its_sample(name):
    rng = random.Random(2)
    gold, predicted = random_tags(rng, "BIES", 12), []
    predicted = [[tag if rng.random() < 0.7 else "O" for tag in tags] for tags in gold]
    scores = metrics_for("tag")[name].bootstrap(metric_inputs(gold, predicted), np.random.default_rng(1), 5)
    drawn = np.random.default_rng(1).integers(12, size=(5, 12))
    assert scores == pytest.approx([compute_scores("tag", (name,), [gold[i] for i in rows],
                                                  [predicted[i] for i in rows])[name]
                                   for rows in drawn])


def test_unscorable_inputs_are_rejected():
    with pytest.raises(UserError) as caught:
        compute_scores("tag", ("f1",), [["O", "B-PER"], ["PER"]], [["O"], ["X-PER"]])
    assert [what for _, what in caught.value.problems] == ["sentence 1: 2 tags and 1 predictions", '"PER" is not a tag',
                                                           '"X-PER" is not a tag']
    with pytest.raises(UserError, match='"E-PER" is not a tag'):
        compute_scores("tag", ("f1",), [["B-PER", ""]], [["B-PER", "E-PER"]], scheme="IOB2")
    with pytest.raises(UserError, match="and 3 more"):
        compute_scores("tag", ("f1",), [["O", "O"]] * 11, [["O"]] * 11)


def test_only_outside_tags_give_zero():
    assert compute_scores("tag", NAMES, [["O", "O"]], [["O", "O"]]) == {"f1": 0, "precision": 0, "recall": 0,
                                                                        "conll_f1": 0,
                                                               "accuracy": 1}
