"""Conversion of traditional to simplified Chinese: in tokenizer training, corpora, models, saving and loading."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from stemma.cli import main
from stemma.corpus.build import build_corpus
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.recipe_loading import recipe
from stemma.text import simplify_chinese
from stemma.text.tokenizer import Tokenizer
from stemma.text.train_tokenizer import train_tokenizer
from stemma.training.corpus_cache import adopt_tokenizer
from stemma.training.pretrain import pretrain

TRADITIONAL, SIMPLIFIED = "頭髮與發財，漢語語言學。", "头发与发财，汉语语言学。"
PLAIN = "A reader of 頭髮 [MASK]"


@pytest.fixture(scope="module")
def opencc():
    pytest.importorskip("opencc")


@pytest.fixture(scope="module")
def tokenizer(opencc) -> Tokenizer:
    return train_tokenizer(iter([TRADITIONAL * 3]), "wordpiece", 300, lowercase=True, simplify=True)


def test_the_vocabulary_has_simplified_characters_only(tokenizer):
    vocabulary = set(tokenizer.backend.get_vocab())
    assert {"发", "头", "汉"} <= vocabulary and not {"髮", "發", "頭", "漢"} & vocabulary


def test_all_encode_methods_simplify(tokenizer):
    plain = Tokenizer(tokenizer.backend)
    assert not plain.simplify
    expected = plain.encode(SIMPLIFIED).ids
    assert tokenizer.encode(TRADITIONAL).ids == expected != plain.encode(TRADITIONAL).ids
    assert tokenizer.encode_batch([TRADITIONAL])[0].ids == expected
    pair = plain.encode(SIMPLIFIED, SIMPLIFIED).ids
    assert tokenizer.encode(TRADITIONAL, TRADITIONAL).ids == pair
    assert tokenizer.encode_batch([TRADITIONAL], [TRADITIONAL])[0].ids == pair
    with_template = tokenizer.with_template("start A separator", "start A separator B separator")
    assert with_template.encode(TRADITIONAL).ids[1:-1] == expected
    assert tokenizer.special_id("mask") in tokenizer.encode(PLAIN).ids


def test_a_saved_tokenizer_still_simplifies(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tok")
    assert json.loads((tmp_path / "tok/tokenizer_config.json").read_text())["simplify"] is True
    loaded = Tokenizer.load(tmp_path / "tok")
    assert loaded.simplify and loaded.encode(TRADITIONAL, special=False).ids == tokenizer.encode(TRADITIONAL).ids
    Tokenizer(tokenizer.backend).save(tmp_path / "plain")
    assert not Tokenizer.load(tmp_path / "plain").simplify
    assert "simplify" not in (tmp_path / "plain/tokenizer_config.json").read_text()


def test_transformers_agrees_on_simplified_text_only(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = tokenizer.encode(TRADITIONAL, special=False).ids
    assert theirs(SIMPLIFIED, add_special_tokens=False)["input_ids"] == ours
    assert theirs(TRADITIONAL, add_special_tokens=False)["input_ids"] != ours


def test_the_text_of_a_corpus_is_simplified(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text(f"{TRADITIONAL}\n{TRADITIONAL}")
    (tmp_path / "d.jsonl").write_text(json.dumps([["a", TRADITIONAL], ["b", TRADITIONAL]]) + "\n")
    build_corpus([tmp_path / "a.txt"], tokenizer, tmp_path / "corpus", workers=1, dialogue=[tmp_path / "d.jsonl"])
    corpus = Corpus.open(tmp_path / "corpus")
    assert [corpus.document_text(index) for index in (0, 1)] == [f"{SIMPLIFIED}\n{SIMPLIFIED}"] * 2
    ids = tokenizer.encode(TRADITIONAL).ids
    assert corpus.values_between("tokens", 0, corpus.num_tokens).tolist() == ids * 4
    assert corpus.tokenizer.simplify and corpus.manifest["unknown"] == 0
    start, stop = corpus.document_starts[1], corpus.document_starts[2]
    starts = corpus.values_between("starts", start, stop)
    assert [corpus.document_text(1)[offset] for offset in starts] == list(SIMPLIFIED * 2)
    adopted = adopt_tokenizer(recipe("bert@tiny"), corpus)
    assert adopted.settings.tokenizer.simplify and adopted.settings.tokenizer.cjk_spacing


def test_a_recipe_with_simplify_trains_a_model_that_simplifies(opencc, tmp_path, caplog):
    (tmp_path / "a.txt").write_text("\n\n".join([f"{TRADITIONAL}\n{TRADITIONAL}"] * 30))
    changes = ["tokenizer.simplify=true", "network.width=32", "network.heads=2", "network.layers=1",
               "network.feedforward=64", "corpus.sequence_length=32", "training.batch_size=4", "training.threads=1"]
    pretrain("bert@tiny", tmp_path / "a.txt", tmp_path / "run", steps=1, changes=changes)
    assert simplify_chinese.SIMPLIFY_NOTICE in caplog.messages
    import stemma

    model = stemma.load(tmp_path / "run")
    assert model.tokenizer.simplify and model.recipe.settings.tokenizer.simplify
    encoded = [stemma.load(tmp_path / "run").tokenizer.encode(text).ids for text in (TRADITIONAL, SIMPLIFIED)]
    assert encoded[0] == encoded[1]
    from stemma.tasks.embed import embed

    traditional, simplified = embed(model, [TRADITIONAL, SIMPLIFIED])
    assert np.array_equal(traditional, simplified)


def test_missing_opencc_is_reported_with_the_install_command(tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "opencc", None)
    simplify_chinese._converter.cache_clear()
    try:
        assert tokenizer.encode("plain").ids  # there is nothing to convert
        with pytest.raises(UserError, match=r'pip install "stemma-lm\[zh\]"'):
            tokenizer.encode(TRADITIONAL)
    finally:
        simplify_chinese._converter.cache_clear()


def test_the_tokenizer_command_has_simplify_and_cjk_spacing(opencc, tmp_path, capsys):
    (tmp_path / "a.txt").write_text(TRADITIONAL)
    command = ["tokenizer", "train", str(tmp_path / "a.txt"), "--kind", "wordpiece", "--vocab-size", "300", "--json"]
    assert main([*command, "--simplify", "--no-cjk-spacing", "--out", str(tmp_path / "tok")]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["simplify"] is True and result["cjk_spacing"] is False and result["lowercase"] is False
    assert "OpenCC, t2s" in captured.err
    loaded = Tokenizer.load(tmp_path / "tok")
    assert loaded.simplify and loaded.cjk_spacing is False
    assert main(["tokenizer", "info", str(tmp_path / "tok")]) == 0 and "OpenCC, t2s" in capsys.readouterr().out
    assert main([*command, "--out", str(tmp_path / "plain")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["simplify"] is False and result["cjk_spacing"] is True
    command[command.index("wordpiece")] = "byte_bpe"
    assert main([*command, "--cjk-spacing", "--out", str(tmp_path / "bytes")]) == 2
    assert "leave --cjk-spacing out" in capsys.readouterr().err and not (tmp_path / "bytes").exists()
