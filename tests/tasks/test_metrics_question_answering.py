"""Scores of answers by the official script of each data set; all expected values are computed by hand.
"""

from __future__ import annotations

import pytest

from stemma.errors import UserError
from stemma.tasks.metrics import compute_scores, squad2_summary
from stemma.tasks.metrics.question_answering import cjrc, cmrc, detect_answer_matching, squad, squad2


@pytest.mark.parametrize(("predicted", "right", "expected"), [
    ("The  Red, House!", ["red house"], (1, 1)),                       # case, article, punctuation, white space
    ("a red house", ["red house of cards"], (0, 2 * 2 / (2 + 4))),
    ("cat cat dog", ["cat dog dog"], (0, 2 / 3)),                      # a word counts as often as both have it
    ("in 1999", ["1999", "the year 1998"], (0, 2 / 3)),                # the best of several
    ("theatre", ["atre"], (0, 0)),                                     # an article is a whole word
    ("well-known", ["wellknown"], (1, 1)),                             # punctuation leaves no gap
    ("“red”", ["red"], (0, 0)),                                        # only ASCII punctuation is dropped
    ("", ["red"], (0, 0))])
def test_squad(predicted, right, expected):
    assert squad(predicted, right) == pytest.approx(expected)
    assert squad2(predicted, right) == pytest.approx(expected)


def test_squad_and_squad2_differ_on_empty_answers():
    assert squad("the", ["The!"]) == (1, 0)     # 1.1: no word is shared
    assert squad2("the", ["The!"]) == (1, 1)    # 2.0: no right answer has a word, so only silence is right, and is said
    assert squad2("house", ["the", "house"]) == (1, 1) and squad2("", ["the", "house"]) == (0, 0)
    assert squad2("", []) == (1, 1) and squad2("red", []) == (0, 0)


GOLD = [["red house"], ["the cat"], [], []]
SAID = ["red", "cat", "", "dog"]


def test_squad2_summary():
    assert squad2_summary(GOLD, SAID) == pytest.approx({
        "exact_match": 50, "f1": 100 * (2 / 3 + 1 + 1 + 0) / 4, "total": 4,
        "HasAns_exact": 50, "HasAns_f1": 100 * (2 / 3 + 1) / 2, "HasAns_total": 2,
        "NoAns_exact": 50, "NoAns_f1": 50, "NoAns_total": 2})
    assert list(squad2_summary(GOLD[:2], SAID[:2])) == ["exact_match", "f1", "total"]
    assert squad2_summary(GOLD[2:], SAID[2:])["NoAns_exact"] == 50 and "HasAns_f1" not in squad2_summary(GOLD[2:],
                                                                                                         SAID[2:])


def test_best_threshold():
    """No answers score 2 of 4. By no-answer score: the cat (+1), the dog (-1), red (+2/3, exact 0), no answer (0)."""
    scores = squad2_summary(GOLD, SAID, no_answer=[0.5, 0.1, 0.9, 0.2])
    assert scores["best_exact"] == 75 and scores["best_exact_thresh"] == 0.1
    assert scores["best_f1"] == 75 and scores["best_f1_thresh"] == 0.1
    # red before the dog: F1 goes on to rise, exact match does not
    scores = squad2_summary(GOLD, SAID, no_answer=[0.15, 0.1, 0.9, 0.2])
    assert scores["best_f1"] == pytest.approx(100 * (2 + 1 + 2 / 3) / 4) and scores["best_f1_thresh"] == 0.15
    assert scores["best_exact"] == 75 and scores["best_exact_thresh"] == 0.1
    # silence of its own accord costs nothing, however sure it was to have an answer
    assert squad2_summary([[], ["red"]], ["", "red"], no_answer=[0.1, 0.2])["best_f1"] == 100
    # nothing is worth saying: 0, where probabilities above it are all silenced
    scores = squad2_summary([["red"], []], ["blue", "dog"], no_answer=[0.3, 0.2])
    assert scores["best_f1"] == 50 and scores["best_f1_thresh"] == 0


def test_ties_in_no_answer_probability_keep_their_order():
    """As in the official script, the best may be between two questions of equal score, which no threshold separates."""
    gold, predicted = [["red"], []], ["red", "dog"]
    assert squad2_summary(gold, predicted, no_answer=[0.4, 0.4])["best_exact"] == 100
    assert squad2_summary(gold[::-1], predicted[::-1], no_answer=[0.4, 0.4])["best_exact"] == 50


def test_above_the_threshold_no_answer_is_predicted():
    names, sure = ("exact_match", "f1"), [0.5, 0.1, 0.9, 0.2]
    assert compute_scores("qa", names, GOLD, SAID, no_answer=sure, threshold=0.1) == {"exact_match": 75, "f1": 75}
    assert compute_scores("qa", names, GOLD, SAID, no_answer=sure, threshold=1.0) == compute_scores("qa", names, GOLD,
                                                                                                    SAID)
    assert squad2_summary(GOLD, SAID, no_answer=sure, threshold=0.1)["NoAns_f1"] == 100
    # a threshold changes what counts, not what was said: the search is as before
    assert squad2_summary(GOLD, SAID, no_answer=sure, threshold=0.0)["best_f1"] == 75


@pytest.mark.parametrize(("predicted", "right", "expected"), [
    ("《红楼梦》", ["红楼梦"], (1, 1)),                               # its own list of punctuation
    ("北京大学", ["北京的大学"], (0, 2 * 2 / (4 + 5))),               # the longest shared run, no more
    ("北京大学", ["北京小学"], (0, 2 * 2 / (4 + 4))),                 # a run ends where they differ
    ("大学北京", ["北京大学"], (0, 2 * 2 / (4 + 4))),                 # in their order
    ("1998年Windows 98发布", ["windows 98"], (0, 2 * 2 / (6 + 2))),   # 1998 年 windows 98 发 布
    ("it's", ["it is"], (0, 2 * 1 / (2 + 2))),                        # NLTK's words: it 's
    ("A-B", ["ab"], (1, 1)),                                          # dropped before words are found
    ("好…", ["好"], (0, 2 * 1 / (2 + 1))),                            # a single ellipsis is not on the list
    ("上海", ["北京", "上海市"], (0, 2 * 2 / (2 + 3))),
    ("上海", ["北京"], (0, 0)),
    ("", ["北京"], (0, 0)),
    ("", [], (1, 1)), ("北京", [], (0, 0))])
def test_cmrc(predicted, right, expected):
    assert cmrc(predicted, right) == pytest.approx(expected)


@pytest.mark.parametrize(("predicted", "right", "expected"), [
    ("被告人，张某", ["被告人张某"], (1, 1)),
    ("张某被告", ["被告张三"], (0, 2 * 3 / (4 + 4))),                 # characters in any order
    ("YES", ["yes"], (1, 1)),
    ("张某", ["张某", "张三", "张某"], (1, 1)),                       # whoever is left out, another is right
    ("张某", ["张某", "李四"], (0.5, 0.5)),                           # half the time the right one is left out
    ("张某", ["张某", "张三"], (0.5, (0.5 + 1) / 2)),
    ("", [], (1, 1)), ("张某", [], (0, 0))])
def test_cjrc(predicted, right, expected):
    assert cjrc(predicted, right) == pytest.approx(expected)


def test_answer_matching_is_detected_from_the_answers():
    assert detect_answer_matching([["red"], ["blue"]]) == "squad" and detect_answer_matching([["red"], []]) == "squad2"
    assert detect_answer_matching([["北京大学 MBA"], []]) == "cmrc" and detect_answer_matching([[], []]) == "squad2"
    assert compute_scores("qa", ("f1",), [["北京的大学"]], ["北京大学"])["f1"] == pytest.approx(400 / 9)
    assert compute_scores("qa", ("f1",), [["张某", "李四"]], ["张某"], matching="cjrc")["f1"] == 50


def test_unscorable_inputs_are_rejected():
    with pytest.raises(UserError, match='2 of 4 questions have no answer, which SQuAD 1.1 does not know; .*"squad2"'):
        compute_scores("qa", ("f1",), GOLD, SAID, matching="squad")
    with pytest.raises(UserError, match='no way "cmrc2018" to compare answers; .*Did you mean "cmrc"'):
        compute_scores("qa", ("f1",), GOLD, SAID, matching="cmrc2018")
    with pytest.raises(UserError, match="there are 4 questions and 1 no-answer scores"):
        compute_scores("qa", ("f1",), GOLD, SAID, no_answer=[0.1])
    with pytest.raises(UserError, match="a no-answer threshold needs the no-answer scores"):
        compute_scores("qa", ("f1",), GOLD, SAID, threshold=0.5)
