"""The vocabulary size that follows from the amount of text."""

from __future__ import annotations

import json

import pytest
from conftest import small_text

import stemma
from stemma.recipe_loading import recipe
from stemma.text.vocabulary_size import MIN_SIZE, vocab_size_for_text


def texts(num_bytes: int):
    return ("a" * 1000 for _ in range(num_bytes // 1000))


@pytest.mark.parametrize(("num_bytes", "size"), [(1_000, 1_024), (1_000_000, 2_048), (4_000_000, 4_096),
                                                 (10_000_000, 8_192), (40_000_000, 9_000)])
def test_the_size_grows_with_the_root_of_the_text_up_to_the_published_one(num_bytes, size):
    assert vocab_size_for_text(texts(num_bytes), "wordpiece", 9_000) == size


def test_reading_stops_when_the_published_size_is_reached():
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield "a" * 100_000

    assert vocab_size_for_text(endless(), "byte_bpe", 4_096) == 4_096
    assert read < 100


def test_half_of_the_vocabulary_may_be_characters():
    """A short Chinese text has more characters than the rule has pieces; a byte-level vocabulary needs none of them."""
    text = "".join(chr(0x4E00 + index) for index in range(3_000))
    assert vocab_size_for_text([text], "wordpiece", 21_128) == 2 * 2_999  # one of 3,000 is not needed for 99.95%
    assert vocab_size_for_text([text], "byte_bpe", 21_128) == MIN_SIZE
    assert vocab_size_for_text([text], "word", 21_128) == 21_128  # the text decides how many words there are


def test_laptop_sizes_fit_the_vocabulary_unless_a_size_is_stated():
    assert recipe("bert@tiny").settings.tokenizer.fit_to_text
    assert not recipe("bert@base").settings.tokenizer.fit_to_text
    stated = recipe("bert@tiny", ["tokenizer.vocab_size=9000"]).settings.tokenizer
    assert (stated.vocab_size, stated.fit_to_text) == (9000, None)


def test_pretrain_reports_the_vocabulary_and_records_it(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = tmp_path / "notes.txt"
    text.write_text(small_text() * 3, encoding="utf-8")
    caplog.set_level("INFO", logger="stemma")
    stemma.pretrain("gpt2@tiny", corpus=text, out=tmp_path / "run", steps=1,
                    changes=["network.width=16", "corpus.sequence_length=16", "training.batch_size=4"])
    assert any("byte_bpe vocabulary of 1,024 on the text (chosen by the amount of text; the published size is "
               "tokenizer.vocab_size=50257)" in text for text in caplog.messages)
    chosen = stemma.recipe(tmp_path / "run/recipe.toml")
    assert chosen.settings.tokenizer.vocab_size <= 1_024 and chosen.origin["tokenizer.vocab_size"] == "corpus"
    assert json.loads((tmp_path / "run/model/config.json").read_text())["vocab_size"] <= 1_024
