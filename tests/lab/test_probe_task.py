from collections import Counter

import numpy as np
import pytest

from stemma.errors import UserError
from stemma.lab.quickstart.probe_task import Vocabulary, count_words, make_probe, replace_words, swap_words

NOUNS = ["file", "socket", "parser", "module", "string", "thread", "buffer", "header", "table", "reader", "queue"]
VERBS = ["opens", "closes", "reads", "writes", "checks", "returns", "keeps", "drops"]
SENTENCES = [f"The {a} {verb} every {b}, and then (if needed) the {c} is closed."
             for a in NOUNS for verb in VERBS for b in NOUNS[:4] for c in NOUNS[:2]]
COUNTS = count_words(SENTENCES)


def words(text: str) -> list[str]:
    return [word.strip("(),.").lower() for word in text.split()]


@pytest.mark.parametrize("kind", ["replaced_words", "swapped_words"])
def test_a_probe_is_balanced_disjoint_and_reproducible(kind):
    sentences = [*SENTENCES, *SENTENCES, "Too short.", " ".join(["word"] * 31)]
    probe = make_probe(kind, sentences, COUNTS, seed=3, train=100, test=200)
    assert (len(probe.train), len(probe.test)) == (100, 200)
    for split in (probe.train, probe.test):
        assert Counter(label for _, label in split) == {0: len(split) // 2, 1: len(split) // 2}
        assert [label for _, label in split] != [label for _, label in sorted(split, key=lambda pair: pair[1])]
    texts = [text for text, _ in probe.train + probe.test]
    assert len(set(texts)) == len(texts)
    for text, label in probe.train + probe.test:
        assert (text in SENTENCES) == (label == 0)
    assert probe == make_probe(kind, sentences, COUNTS, seed=3, train=100, test=200)
    assert probe != make_probe(kind, sentences, COUNTS, seed=4, train=100, test=200)


def test_each_sentence_is_used_once():
    """There are as many examples as sentences, so each must be used exactly once, original or corrupted."""
    numbered = [f"Sentence{i} tells of a reader that never closes its file" for i in range(40)]
    probe = make_probe("swapped_words", numbered, COUNTS, seed=0, train=20, test=20)
    sources = [next(word.lower() for word in text.split() if word.lower().startswith("sentence"))
               for text, _ in probe.train + probe.test]
    assert len(set(sources)) == 40


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_replace_words_changes_exactly_the_requested_number(strength):
    rng, vocabulary = np.random.default_rng(0), Vocabulary(COUNTS)
    for sentence in SENTENCES[:50]:
        corrupted = replace_words(sentence, strength, vocabulary, rng)
        changed = [(old, new) for old, new in zip(words(sentence), words(corrupted), strict=True) if old != new]
        assert len(changed) == strength
        assert corrupted[0].isupper() and corrupted.endswith(".") and corrupted.count("(") == 1


def test_replacements_follow_the_training_frequencies():
    vocabulary = Vocabulary({"the": 900, "buffer": 99, "OSError": 1, "x86": 10_000, "old": 0})
    rng = np.random.default_rng(1)
    drawn = Counter(vocabulary.draw("Old", rng) for _ in range(3000))
    assert set(drawn) <= {"the", "buffer", "OSError"}  # no words with digits, and none with count 0
    assert drawn["the"] / 3000 == pytest.approx(0.9, abs=0.03)
    assert {Vocabulary({"one": 1, "two": 1}).draw("", rng) for _ in range(50)} == {"one", "two"}
    assert "the" not in {vocabulary.draw("The", rng) for _ in range(100)}


@pytest.mark.parametrize("span", [1, 2])
def test_swap_words_swaps_neighbouring_spans_only(span):
    rng, vocabulary = np.random.default_rng(0), Vocabulary(COUNTS)
    for sentence in SENTENCES[:80]:
        old, new = words(sentence), words(swap_words(sentence, span, vocabulary, rng))
        assert old != new
        possible = [old[:i] + old[i + span:i + 2 * span] + old[i:i + span] + old[i + 2 * span:]
                    for i in range(len(old) - 2 * span + 1)]
        assert new in possible


def test_swap_words_keeps_case_and_punctuation_at_their_positions():
    rng = np.random.default_rng(0)
    results = {swap_words("Return it (or XML).", 1, Vocabulary(COUNTS), rng) for _ in range(100)}
    assert results == {"It return (or XML).", "Return or (it XML).", "Return it (XML or)."}
    assert swap_words("No no NO no", 1, Vocabulary(COUNTS), rng) is None


def test_count_words_ignores_the_capital_at_the_start_of_a_sentence():
    assert count_words(["Return the OSError, if any.", "OSError is not XML -- the end"]) == {
        "return": 1, "the": 2, "OSError": 2, "if": 1, "any": 1, "is": 1, "not": 1, "XML": 1, "end": 1}


def test_invalid_probes_are_rejected_with_advice():
    with pytest.raises(UserError, match='Did you mean "swapped_words"'):
        make_probe("swaped_words", SENTENCES, COUNTS, seed=0, train=2, test=2)
    with pytest.raises(UserError, match="ask for fewer"):
        make_probe("swapped_words", SENTENCES[:10], COUNTS, seed=0, train=20, test=2)
    with pytest.raises(UserError, match="word counts"):
        make_probe("replaced_words", SENTENCES, {}, seed=0, train=2, test=2)
