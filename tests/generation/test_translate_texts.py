"""`translate`: the order of lines, length limits, and errors for lines that cannot be translated."""

from __future__ import annotations

import pytest
from closeness import assert_close
from generation.seq2seq_models import build_seq2seq_model, sentences, word_tokenizer

import stemma
from stemma.corpus.translation_direction import DirectionDetector
from stemma.errors import UserError
from stemma.generation.generate import GenerationJob, generate
from stemma.generation.options import GenerationOptions
from stemma.generation.translate import translate


@pytest.fixture(scope="module")
def model():
    return build_seq2seq_model("transformer", 10)


def test_translations_are_in_input_order_for_any_batch_size(model):
    lines = sentences(7, 2, 12, 2, 9, 1, 5)
    result = translate(model, lines)
    assert [t.source for t in result] == lines and len({t.text for t in result}) > 3
    progress: list[int] = []
    for batch in (1, 40, 100):
        again = translate(model, lines, batch=batch, on_progress=progress.append)
        assert [(t.source, t.tokens, t.text) for t in again] == [(t.source, t.tokens, t.text) for t in result]
        assert sum(progress) == len(lines) and (batch != 1 or progress[1:] == [1] * len(lines))
        progress.clear()
    for line, translation in zip(lines, result, strict=True):
        (expected,) = generate(model, line, beams=4, tokens=len(line.split()) + 50)
        assert (translation.tokens, translation.text) == (expected.tokens, expected.text.strip())


def test_lines_of_similar_length_share_a_batch(model):
    lines = sentences(2, 19, 3, 18, 1, 2, 3, 9)
    rows = [word_tokenizer().encode(line, special=False).ids for line in lines]
    batches = list(GenerationJob(model, rows, GenerationOptions(greedy=True, places=40)).batches())
    assert [[len(rows[row.prompt_index]) for row in batch] for batch in batches] == [[19, 18], [9, 3, 3, 2], [2, 1]]
    beam_batches = GenerationJob(model, rows, GenerationOptions(beams=4, places=40)).batches()
    assert [len(batch) for batch in beam_batches] == [1, 1, 1, 2, 3]


def test_the_n_best_translations_are_ordered_by_score(model):
    lines = sentences(4, 6)
    for best in translate(model, lines, n_best=3, length_penalty=1.0, max_extra=4):
        candidates = [best, *best.alternatives]
        scores = [c.log_probability / ((5 + len(c.tokens)) / 6) for c in candidates]
        assert len({c.tokens for c in candidates}) == 3 and scores == sorted(scores, reverse=True)
    assert all(not translation.alternatives for translation in translate(model, lines))


def test_the_length_of_a_translation_is_limited_by_its_source(model):
    lines = sentences(4, 10)
    never_ending = build_seq2seq_model("transformer", 3)
    for extra, ratio, limits in ((0, 1.0, (4, 10)), (3, 1.0, (7, 13)), (1, 2.0, (9, 21)), (5, 0.0, (5, 5))):
        for options in ({"greedy": True}, {"beams": 2}):
            result = translate(never_ending, lines, max_extra=extra, max_length_ratio=ratio, **options)
            assert all(len(translation.tokens) <= limit for translation, limit in zip(result, limits, strict=True))
            assert any(len(translation.tokens) == limit for translation, limit in zip(result, limits, strict=True))


def test_greedy_equals_one_beam(model):
    lines = sentences(3, 8)
    assert_close(translate(model, lines, greedy=True), translate(model, lines, beams=1))
    assert translate(model, lines, greedy=True)[0].tokens == generate(model, lines[0], greedy=True, tokens=53)[0].tokens


def test_empty_lines_stay_empty(model, caplog):
    (first, second) = sentences(3, 4)
    result = translate(model, [first, "", "  ", second])
    assert [translation.text for translation in result[1:3]] == ["", ""] and result[1].tokens == ()
    assert_close([result[0], result[3]], translate(model, [first, second]))
    assert caplog.messages == ["2 lines (line 2, line 3) are empty, and so are their translations."]
    assert [translation.text for translation in translate(model, ["", " "])] == ["", ""] and translate(model, []) == []


def test_lines_that_are_too_long_are_refused_or_truncated(model, caplog):
    lines = sentences(3, 50, 45, 39)
    with pytest.raises(UserError, match="2 sources are too long: transformer@tiny reads at most 39 tokens") as error:
        translate(model, lines, line_names=["a.en, line 1", "a.en, line 2", "b.en, line 1", "b.en, line 2"])
    assert error.value.problems == [("a.en, line 2", "50 tokens"), ("b.en, line 1", "45 tokens")]
    with pytest.raises(UserError, match="line 1 is 50 tokens long and transformer@tiny reads at most 39"):
        translate(model, lines[1])
    other = build_seq2seq_model("transformer", 2)
    result = translate(other, lines, crop=True)
    assert caplog.messages == ["2 lines (line 2, line 3) were truncated to 39 tokens."]
    first, last = (translate(other, " ".join(lines[1].split()[part]))[0] for part in (slice(39), slice(-39, None)))
    assert result[1].tokens == first.tokens and abs(result[1].log_probability - last.log_probability) > 1e-3
    assert result[1].log_probability == pytest.approx(first.log_probability, abs=1e-4)


def test_a_prefix_is_put_before_every_line(model):
    (line,) = sentences(4)
    assert translate(model, line, prefix="ba da ")[0].tokens == translate(model, "ba da " + line)[0].tokens
    assert translate(model, line, prefix="ba da ")[0].source == line


def test_unknown_characters_give_one_warning(model, caplog):
    translate(model, ["ba zz", "da", "qq"])
    assert caplog.messages == ["the vocabulary lacks some characters of 2 lines (line 1, line 3); the model reads "
                               "[UNK] there."]


def detector(apart: bool) -> DirectionDetector:
    """A detector for which words with b belong to the source language and the others to the target language."""
    import numpy as np

    ids = np.array(sorted(word_tokenizer().token_to_id(word) for word in ("ba", "be", "bi", "da", "de", "di")))
    b = np.array([word_tokenizer().id_to_token(token_id).startswith("b") for token_id in ids])
    often, seldom = np.log(0.333), np.log(0.0005 if apart else 0.2)
    return DirectionDetector(ids, np.where(b, often, seldom), np.where(b, seldom, often))


def test_text_in_the_target_language_is_refused_unless_forced(model):
    lines, line_names = ["ba be ka bi", "da de ma di", "de da da"], ["x.de, line 1", "x.de, line 2", "x.de, line 3"]
    with pytest.raises(UserError, match=r"2 of 3 lines \(the first is x.de, line 2\) look like the language that"):
        translate(model, lines, directions=detector(apart=True), line_names=line_names)
    with pytest.raises(UserError, match="line 1 looks like the language that this model translates into.*--force"):
        translate(model, "da de di", directions=detector(apart=True))
    plain = translate(model, lines)
    assert_close(translate(model, lines, directions=detector(apart=True), force=True), plain)
    assert detector(apart=False).log_odds(word_tokenizer().encode("da de di " * 10, special=False).ids) > 10
    assert translate(model, "da de di " * 10, directions=detector(apart=False))  # one language on both sides
    assert_close(translate(model, lines[:2], directions=detector(apart=True)), plain[:2])  # one of two lines


def test_all_contradicting_options_are_reported(model):
    with pytest.raises(UserError) as error:
        translate(model, "ba", beams=2, n_best=3, max_extra=-1, batch=0)
    assert [option for option, _ in error.value.problems] == ["--batch", "--max-extra", "--n-best"]
    for wrong in ({"greedy": True, "n_best": 2}, {"greedy": True, "length_penalty": 1.0},
                  {"max_extra": 0, "max_length_ratio": 0}):
        with pytest.raises(UserError, match="cannot be followed"):
            translate(model, "ba", **wrong)


def test_models_that_are_not_seq2seq_are_refused(tokenizer_folder):
    for name, message in (("bert", "bert@tiny reads a text and does not generate one"),
                          ("gpt2", r"gpt2@tiny continues a prompt \(`stemma generate`\) and does not translate")):
        with pytest.raises(UserError, match=message + ".*stemma pretrain transformer@mini"):
            translate(stemma.build(f"{name}@tiny", 60, ["network.width=16"]), "ba")


@pytest.mark.parametrize("kind", ["t5", "bart", "unilm", "prefix-lm"])
def test_every_kind_of_seq2seq_model_translates(kind):
    lines = sentences(3, 6)
    result = stemma.translate(build_seq2seq_model(kind), lines, max_extra=3)
    assert all(translation.tokens and translation.text == translation.text.strip() for translation in result)
