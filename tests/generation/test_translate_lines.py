"""Translating lines: their order, their limits, and what is said about lines that cannot be translated."""

from __future__ import annotations

import pytest
from closeness import assert_close
from generation.sources import sentences, source_model, words

import stemma
from stemma.corpus.translation_direction import DirectionDetector
from stemma.errors import UserError
from stemma.generation.generate import GenerationJob, generate
from stemma.generation.options import GenerationOptions
from stemma.generation.translate import translate


@pytest.fixture(scope="module")
def model():
    return source_model("transformer", 10)


def test_lines_come_back_in_their_order_whatever_the_batch(model):
    lines = sentences(7, 2, 12, 2, 9, 1, 5)
    found = translate(model, lines)
    assert [one.source for one in found] == lines and len({one.text for one in found}) > 3
    watched: list[int] = []
    for batch in (1, 40, 100):
        again = translate(model, lines, batch=batch, on_progress=watched.append)
        assert [(one.source, one.tokens, one.text) for one in again] == [(one.source, one.tokens, one.text)
                                                                         for one in found]
        assert sum(watched) == len(lines) and (batch != 1 or watched[1:] == [1] * len(lines))
        watched.clear()
    for line, one in zip(lines, found, strict=True):
        (expected,) = generate(model, line, beams=4, tokens=len(line.split()) + 50)
        assert (one.tokens, one.text) == (expected.tokens, expected.text.strip())


def test_lines_of_like_length_go_together(model):
    lines = sentences(2, 19, 3, 18, 1, 2, 3, 9)
    rows = [words().encode(line, special=False).ids for line in lines]
    batches = list(GenerationJob(model, rows, GenerationOptions(greedy=True, places=40)).batches())
    assert [[len(rows[row.prompt_index]) for row in batch] for batch in batches] == [[19, 18], [9, 3, 3, 2], [2, 1]]
    searched = GenerationJob(model, rows, GenerationOptions(beams=4, places=40)).batches()
    assert [len(batch) for batch in searched] == [1, 1, 1, 2, 3]


def test_the_n_best_are_in_order(model):
    lines = sentences(4, 6)
    for one in translate(model, lines, n_best=3, length_penalty=1.0, max_extra=4):
        every = [one, *one.alternatives]
        values = [each.log_probability / ((5 + len(each.tokens)) / 6) for each in every]
        assert len({each.tokens for each in every}) == 3 and values == sorted(values, reverse=True)
    assert all(not one.alternatives for one in translate(model, lines))


def test_a_translation_is_as_long_as_its_source_allows(model):
    lines = sentences(4, 10)
    never = source_model("transformer", 3)
    for extra, ratio, most in ((0, 1.0, (4, 10)), (3, 1.0, (7, 13)), (1, 2.0, (9, 21)), (5, 0.0, (5, 5))):
        for way in ({"greedy": True}, {"beams": 2}):
            found = translate(never, lines, max_extra=extra, max_length_ratio=ratio, **way)
            assert all(len(one.tokens) <= limit for one, limit in zip(found, most, strict=True))
            assert any(len(one.tokens) == limit for one, limit in zip(found, most, strict=True))


def test_greedy_is_one_beam(model):
    lines = sentences(3, 8)
    assert_close(translate(model, lines, greedy=True), translate(model, lines, beams=1))
    assert translate(model, lines, greedy=True)[0].tokens == generate(model, lines[0], greedy=True, tokens=53)[0].tokens


def test_empty_lines_stay_empty(model, caplog):
    (first, second) = sentences(3, 4)
    found = translate(model, [first, "", "  ", second])
    assert [one.text for one in found[1:3]] == ["", ""] and found[1].tokens == ()
    assert_close([found[0], found[3]], translate(model, [first, second]))
    assert caplog.messages == ["2 lines (line 2, line 3) are empty, and so are their translations."]
    assert [one.text for one in translate(model, ["", " "])] == ["", ""] and translate(model, []) == []


def test_lines_that_are_too_long(model, caplog):
    lines = sentences(3, 50, 45, 39)
    with pytest.raises(UserError, match="2 sources are too long: transformer@tiny reads at most 39 tokens") as error:
        translate(model, lines, line_names=["a.en, line 1", "a.en, line 2", "b.en, line 1", "b.en, line 2"])
    assert error.value.problems == [("a.en, line 2", "50 tokens"), ("b.en, line 1", "45 tokens")]
    with pytest.raises(UserError, match="line 1 is 50 tokens long and transformer@tiny reads at most 39"):
        translate(model, lines[1])
    other = source_model("transformer", 2)
    found = translate(other, lines, crop=True)
    assert caplog.messages == ["2 lines (line 2, line 3) were truncated to 39 tokens."]
    first, last = (translate(other, " ".join(lines[1].split()[part]))[0] for part in (slice(39), slice(-39, None)))
    assert found[1].tokens == first.tokens and abs(found[1].log_probability - last.log_probability) > 1e-3
    assert found[1].log_probability == pytest.approx(first.log_probability, abs=1e-4)


def test_a_prefix_stands_before_every_line(model):
    (line,) = sentences(4)
    assert translate(model, line, prefix="ba da ")[0].tokens == translate(model, "ba da " + line)[0].tokens
    assert translate(model, line, prefix="ba da ")[0].source == line


def test_unknown_characters_are_told_once(model, caplog):
    translate(model, ["ba zz", "da", "qq"])
    assert caplog.messages == ["the vocabulary lacks some characters of 2 lines (line 1, line 3); the model reads "
                               "[UNK] there."]


def tables(apart: bool) -> DirectionDetector:
    """Words with b are the source's, the others the target's."""
    import numpy as np

    ids = np.array(sorted(words().token_to_id(word) for word in ("ba", "be", "bi", "da", "de", "di")))
    b = np.array([words().id_to_token(number).startswith("b") for number in ids])
    often, seldom = np.log(0.333), np.log(0.0005 if apart else 0.2)
    return DirectionDetector(ids, np.where(b, often, seldom), np.where(b, seldom, often))


def test_a_swapped_pair_of_languages(model):
    lines, where = ["ba be ka bi", "da de ma di", "de da da"], ["x.de, line 1", "x.de, line 2", "x.de, line 3"]
    with pytest.raises(UserError, match=r"2 of 3 lines \(the first is x.de, line 2\) look like the language that"):
        translate(model, lines, directions=tables(apart=True), line_names=where)
    with pytest.raises(UserError, match="line 1 looks like the language that this model translates into.*--force"):
        translate(model, "da de di", directions=tables(apart=True))
    plain = translate(model, lines)
    assert_close(translate(model, lines, directions=tables(apart=True), force=True), plain)
    assert tables(apart=False).log_odds(words().encode("da de di " * 10, special=False).ids) > 10
    assert translate(model, "da de di " * 10, directions=tables(apart=False))  # one language on both sides
    assert_close(translate(model, lines[:2], directions=tables(apart=True)), plain[:2])  # one of two proves nothing


def test_options_that_cannot_be_followed(model):
    with pytest.raises(UserError) as error:
        translate(model, "ba", beams=2, n_best=3, max_extra=-1, batch=0)
    assert [where for where, _ in error.value.problems] == ["--batch", "--max-extra", "--n-best"]
    for wrong in ({"greedy": True, "n_best": 2}, {"greedy": True, "length_penalty": 1.0},
                  {"max_extra": 0, "max_length_ratio": 0}):
        with pytest.raises(UserError, match="cannot be followed"):
            translate(model, "ba", **wrong)


def test_who_does_not_write_from_a_source(tokenizer_folder):
    for name, said in (("bert", "bert@tiny reads a text and does not generate one"),
                       ("gpt2", r"gpt2@tiny continues a prompt \(`stemma generate`\) and does not translate")):
        with pytest.raises(UserError, match=said + ".*stemma pretrain transformer@mini"):
            translate(stemma.build(f"{name}@tiny", 60, ["network.width=16"]), "ba")


@pytest.mark.parametrize("kind", ["t5", "bart", "unilm", "prefix-lm"])
def test_every_way_translates(kind):
    lines = sentences(3, 6)
    found = stemma.translate(source_model(kind), lines, max_extra=3)
    assert all(one.tokens and one.text == one.text.strip() for one in found)
