"""BLEU, chrF and ROUGE: the numbers of the libraries, with their signatures."""

from __future__ import annotations

import sys

import pytest

from stemma.errors import UserError
from stemma.tasks.metrics.bleu_rouge import summary_scores, translation_scores

TEXTS = ["the cat sat on the mat today", "a dog plays with a red ball"]
REFERENCE = ["The cat sat on the mat yesterday", "a dog is playing with a red ball"]


def test_a_translation_equal_to_its_reference_is_perfect():
    scores = translation_scores(REFERENCE, [REFERENCE])
    assert scores["bleu"]["score"] == pytest.approx(100) and scores["chrf"]["score"] == pytest.approx(100)
    assert scores["bleu"]["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_bleu_is_a_corpus_level_score():
    """By hand, in lower case: matches of 1, 2, 3 and 4 words in 14, 12, 10 and 8."""
    scores = translation_scores(TEXTS, [REFERENCE], lowercase=True)["bleu"]
    matches = (6 + 6, 5 + 4, 4 + 2, 3 + 1)
    assert scores["precisions"] == pytest.approx([100 * m / n for m, n in zip(matches, (14, 12, 10, 8), strict=True)])
    assert (scores["length"], scores["reference_length"]) == (14, 15) and scores["brevity_penalty"] < 1
    assert "case:lc" in scores["signature"]
    assert scores["score"] > translation_scores(TEXTS, [REFERENCE])["bleu"]["score"]


def test_bleu_takes_several_references_and_other_tokenizers():
    two = translation_scores(TEXTS, [REFERENCE, TEXTS])
    assert two["bleu"]["score"] == pytest.approx(100) and "nrefs:2" in two["bleu"]["signature"]
    chinese = translation_scores(["猫坐在垫子上面"], [["猫坐在垫子上"]], tokenize="zh")["bleu"]
    assert chinese["precisions"][0] == pytest.approx(600 / 7) and "tok:zh" in chinese["signature"]


def test_rouge_equals_a_count_by_hand():
    scores = summary_scores(TEXTS, [REFERENCE])
    assert scores["rouge1"] == pytest.approx(100 * (6 / 7 + 2 * 7 / (7 + 8)) / 2)  # plays and playing are one stem
    assert summary_scores(TEXTS, [TEXTS])["rougeL"] == pytest.approx(100)
    assert summary_scores(TEXTS, [REFERENCE, TEXTS])["rouge2"] == pytest.approx(100)
    chinese = summary_scores(["猫坐在垫子上"], [["猫坐在椅子上"]])
    assert chinese["rouge1"] == pytest.approx(100 * 5 / 6) and "unicode" in chinese["signature"]


def test_unscorable_inputs_are_rejected():
    with pytest.raises(UserError, match="there are 2 texts and the reference has 1"):
        translation_scores(TEXTS, [REFERENCE[:1]])
    with pytest.raises(UserError, match="there are 2 texts and reference 2 has 3"):
        summary_scores(TEXTS, [REFERENCE, [*REFERENCE, "more"]])
    with pytest.raises(UserError, match='no BLEU tokenizer "13".*Did you mean "13a"'):
        translation_scores(TEXTS, [REFERENCE], tokenize="13")
    with pytest.raises(UserError, match="no text to score"):
        translation_scores([], [[]])


def test_a_missing_library_names_its_extra(monkeypatch):
    for name, score in (("sacrebleu", translation_scores), ("rouge_score.rouge_scorer", summary_scores)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(UserError, match=r'pip install "stemma-lm\[metrics\]"'):
            score(TEXTS, [REFERENCE])
