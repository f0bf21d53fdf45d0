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
def test_balanced_disjoint_and_repeatable(kind):
    given = [*SENTENCES, *SENTENCES, "Too short.", " ".join(["word"] * 31)]
    probe = make_probe(kind, given, COUNTS, seed=3, train=100, test=200)
    assert (len(probe.train), len(probe.test)) == (100, 200)
    for part in (probe.train, probe.test):
        assert Counter(label for _, label in part) == {0: len(part) // 2, 1: len(part) // 2}
        assert [label for _, label in part] != [label for _, label in sorted(part, key=lambda pair: pair[1])]
    texts = [text for text, _ in probe.train + probe.test]
    assert len(set(texts)) == len(texts)
    for text, label in probe.train + probe.test:
        assert (text in SENTENCES) == (label == 0)
    assert probe == make_probe(kind, given, COUNTS, seed=3, train=100, test=200)
    assert probe != make_probe(kind, given, COUNTS, seed=4, train=100, test=200)


def test_no_sentence_serves_twice():
    """As many examples as sentences: each must be used exactly once, intact or damaged."""
    numbered = [f"Sentence{i} tells of a reader that never closes its file" for i in range(40)]
    probe = make_probe("swapped_words", numbered, COUNTS, seed=0, train=20, test=20)
    first = [next(word.lower() for word in text.split() if word.lower().startswith("sentence"))
             for text, _ in probe.train + probe.test]
    assert len(set(first)) == 40


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_replaced_words_changes_exactly_so_many(strength):
    rng, vocabulary = np.random.default_rng(0), Vocabulary(COUNTS)
    for sentence in SENTENCES[:50]:
        damaged = replace_words(sentence, strength, vocabulary, rng)
        changed = [(old, new) for old, new in zip(words(sentence), words(damaged), strict=True) if old != new]
        assert len(changed) == strength
        assert damaged[0].isupper() and damaged.endswith(".") and damaged.count("(") == 1


def test_replacements_follow_the_training_frequencies():
    vocabulary = Vocabulary({"the": 900, "buffer": 99, "OSError": 1, "x86": 10_000, "old": 0})
    rng = np.random.default_rng(1)
    drawn = Counter(vocabulary.draw("Old", rng) for _ in range(3000))
    assert set(drawn) <= {"the", "buffer", "OSError"}      # names with digits are never drawn, nor what never occurs
    assert drawn["the"] / 3000 == pytest.approx(0.9, abs=0.03)
    assert {Vocabulary({"one": 1, "two": 1}).draw("", rng) for _ in range(50)} == {"one", "two"}
    assert "the" not in {vocabulary.draw("The", rng) for _ in range(100)}


@pytest.mark.parametrize("span", [1, 2])
def test_swapped_words_moves_neighbours_only(span):
    rng, vocabulary = np.random.default_rng(0), Vocabulary(COUNTS)
    for sentence in SENTENCES[:80]:
        old, new = words(sentence), words(swap_words(sentence, span, vocabulary, rng))
        assert old != new
        possible = [old[:i] + old[i + span:i + 2 * span] + old[i:i + span] + old[i + 2 * span:]
                    for i in range(len(old) - 2 * span + 1)]
        assert new in possible


def test_swap_keeps_case_and_punctuation_in_place():
    rng = np.random.default_rng(0)
    seen = {swap_words("Return it (or XML).", 1, Vocabulary(COUNTS), rng) for _ in range(100)}
    assert seen == {"It return (or XML).", "Return or (it XML).", "Return it (XML or)."}
    assert swap_words("No no NO no", 1, Vocabulary(COUNTS), rng) is None


def test_counts_ignore_the_capital_that_begins_a_sentence():
    assert count_words(["Return the OSError, if any.", "OSError is not XML -- the end"]) == {
        "return": 1, "the": 2, "OSError": 2, "if": 1, "any": 1, "is": 1, "not": 1, "XML": 1, "end": 1}


def test_refusals_say_what_to_do():
    with pytest.raises(UserError, match='Did you mean "swapped_words"'):
        make_probe("swaped_words", SENTENCES, COUNTS, seed=0, train=2, test=2)
    with pytest.raises(UserError, match="ask for fewer"):
        make_probe("swapped_words", SENTENCES[:10], COUNTS, seed=0, train=20, test=2)
    with pytest.raises(UserError, match="word counts"):
        make_probe("replaced_words", SENTENCES, {}, seed=0, train=2, test=2)
