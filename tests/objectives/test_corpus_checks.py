"""Checks of a corpus before training: Chinese without word segmentation, and more speakers than segments."""

from __future__ import annotations

import json

import pytest
from conftest import captured_log_messages
from mixed_corpora import dialogues, mixed_corpus
from small_corpora import corpus_of

from stemma.atomic_files import write_checksums
from stemma.corpus.corpus import MANIFEST, Corpus
from stemma.errors import UserError
from stemma.objectives import check_requirements
from stemma.recipe_loading import recipe
from stemma.text import chinese_words

DIALOGUE = ["remove=objective.next_sentence", "corpus.packing=dialogue"]


@pytest.fixture
def chinese(tmp_path, monkeypatch):
    """Builds a Chinese corpus as if jieba were not installed."""
    from stemma.text.train_tokenizer import train_tokenizer

    monkeypatch.setattr(chinese_words.importlib.util, "find_spec", lambda name: None)
    chinese_words._jieba.cache_clear()
    texts = ["我们在北京大学学习", "长江大桥很长"]

    def build(documents=tuple(texts)):
        train_tokenizer(iter(texts), "wordpiece", 200, lowercase=True).save(tmp_path / "tok")
        with captured_log_messages() as messages:
            return corpus_of(tmp_path, [list(documents)] * 4, tmp_path / "tok"), messages

    yield build
    chinese_words._jieba.cache_clear()


@pytest.mark.parametrize("unit", ["word", "span"])
def test_word_masking_of_unsegmented_chinese_is_refused(chinese, unit):
    corpus, messages = chinese()
    assert any('pip install "stemma-lm[zh]"' in text for text in messages)
    assert corpus.manifest["segmenter"] == "none" and corpus.manifest["chinese"] == 1.0
    with pytest.raises(UserError) as caught:
        check_requirements(recipe("bert@tiny", [f"objective.masked_lm.unit={unit}"]), corpus)
    message = str(caught.value)
    assert 'pip install "stemma-lm[zh]"' in message and "objective.masked_lm.unit=token" in message and unit in message
    check_requirements(recipe("bert@tiny", ["objective.masked_lm.unit=token"]), corpus)


def test_little_chinese_in_other_text_is_accepted(chinese):
    corpus, messages = chinese(["the old clerk reads a long letter by the window before noon 大"] * 3)
    assert 0 < corpus.manifest["chinese"] < 0.1 and not messages
    check_requirements(recipe("bert@tiny", ["objective.masked_lm.unit=word"]), corpus)


def test_word_masking_of_chinese_segmented_by_jieba_is_accepted(tmp_path):
    pytest.importorskip("jieba")
    from stemma.text.train_tokenizer import train_tokenizer

    train_tokenizer(iter(["我们在北京大学学习"]), "wordpiece", 200, lowercase=True).save(tmp_path / "tok")
    corpus = corpus_of(tmp_path, [["我们在北京大学学习", "我们在学习"]] * 4, tmp_path / "tok")
    assert corpus.manifest["segmenter"] == "jieba"
    check_requirements(recipe("bert@tiny", ["objective.masked_lm.unit=word"]), corpus)


def test_an_old_corpus_without_a_chinese_fraction_is_accepted(chinese):
    corpus, _ = chinese()
    manifest = {key: value for key, value in corpus.manifest.items() if key != "chinese"}
    (corpus.path / MANIFEST).write_text(json.dumps(manifest))
    write_checksums(corpus.path)
    check_requirements(recipe("bert@tiny", ["objective.masked_lm.unit=word"]), Corpus.open(corpus.path))


def test_more_speakers_than_segments_are_refused(tmp_path, tokenizer_folder):
    corpus = mixed_corpus(tmp_path, tokenizer_folder, talks=[*dialogues(5), [("a", "x"), ("b", "y"), ("c", "z")]])
    with pytest.raises(UserError, match="document 26 .* 3 speakers.* can tell 2 .*set network.embedding.segments=3"):
        check_requirements(recipe("bert@tiny", DIALOGUE), corpus)
    check_requirements(recipe("bert@tiny", [*DIALOGUE, "network.embedding.segments=3"]), corpus)
    check_requirements(recipe("bert@tiny"), corpus)  # bert reads no dialogues
