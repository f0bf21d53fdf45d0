"""Tokenizers: deterministic training, agreement with AutoTokenizer, and loading of all published formats."""

from __future__ import annotations

import io
import json
import pickle
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from pydoc_data.topics import topics

import numpy as np
import pytest

import stemma.text.train_tokenizer as train_module
from stemma.errors import CorruptFileError, UserError
from stemma.text.special_tokens import SPECIAL_TOKENS
from stemma.text.tokenizer import Tokenizer
from stemma.text.train_tokenizer import train_tokenizer

STORY = [
    f"The {a} {b} of the river, said {c}: it wasn't {b}er than {n}.5 stones! 中文测试{d}文字。"
    for a in ("old", "young", "naïve") for b in ("low", "new", "wide") for c in ("Anna", "Tom") for n in (3, 14)
    for d in ("的", "和")]  # fmt: skip
ODD = ["The newer rivers, wasn't it?", "naïve Über 中文字 x", "", " two  spaces ", "a\tb\nline"]
ODD += ["😀 [MASK] <mask>"]
KINDS = list(SPECIAL_TOKENS)
BERT = ("start A separator", "start A separator B:1 separator:1")


@pytest.fixture(scope="module")
def trained():
    return {kind: train_tokenizer(iter(STORY), kind, 500, lowercase=kind == "wordpiece") for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_lowercase_applies_to_training_and_encoding(kind):
    """With lowercase, capitals change neither the ids nor the vocabulary; without it they change both."""
    lines = [line for word in ("river", "stone", "letter") for line in (f"{word} {word}", f"{word.upper()} a")] * 20
    lowercased, cased = (train_tokenizer(iter(lines), kind, 460, lowercase=lowercase,
                                         roles=set(SPECIAL_TOKENS[kind]) - {"sentinel"})
                         for lowercase in (True, False))
    assert (lowercased.lowercase, cased.lowercase) == (True, False)
    low, high = ([tokenizer.encode_batch([text], special=False)[0].ids for text in ("river stone", "RIVER Stone")]
                 for tokenizer in (lowercased, cased))
    assert low[0] == low[1] and high[0] != high[1]
    pieces = set(cased.backend.get_vocab()) - set(SPECIAL_TOKENS[kind].values())
    assert any("R" in piece for piece in pieces)
    lower_pieces = set(lowercased.backend.get_vocab()) - set(SPECIAL_TOKENS[kind].values())
    assert kind == "byte_bpe" or not any("R" in piece for piece in lower_pieces)  # it has all bytes


@pytest.mark.parametrize("kind", KINDS)
def test_every_special_token_is_in_the_vocabulary(trained, kind):
    tokenizer = trained[kind]
    assert tokenizer.kind == kind and tokenizer.lowercase == (kind == "wordpiece")
    assert set(tokenizer.special_token_ids) == set(SPECIAL_TOKENS[kind]) and len(tokenizer.sentinels) == 100
    assert all(tokenizer.id_to_token(tokenizer.special_id(role)) == SPECIAL_TOKENS[kind][role].format(0)
               for role in SPECIAL_TOKENS[kind])
    assert tokenizer.ids_to_tokens(tokenizer.sentinels) == [SPECIAL_TOKENS[kind]["sentinel"].format(i)
                                                            for i in range(100)]
    assert tokenizer.special_ids.tolist() == list(range(107 if kind in ("wordpiece", "word", "character") else 105))
    assert tokenizer.vocab_size == tokenizer.backend.get_vocab_size() <= 500
    assert kind != "wordpiece" or tokenizer.special_id("padding") == 0


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_an_encoded_text_gives_the_text(trained, kind):
    tokenizer = trained[kind]
    text = "the new river of Anna" if kind != "wordpiece" else "the new river of anna"
    encoding = tokenizer.encode(text, special=False)
    assert tokenizer.decode(encoding.ids) == text
    assert tokenizer.special_id("unknown") not in encoding.ids
    assert not set(encoding.ids) & set(tokenizer.special_ids.tolist())
    assert tokenizer.token_to_id(tokenizer.id_to_token(encoding.ids[-1])) == encoding.ids[-1]
    assert tokenizer.encode_batch([text, "x"], special=False)[0].ids == encoding.ids


def test_each_kind_tokenizes_text_as_expected(trained):
    def pieces(kind, text):
        return trained[kind].encode(text, special=False).tokens

    assert pieces("wordpiece", "NAÏVE rivers 中文.") == ["naive", "river", "##s", "中", "文", "."]
    assert pieces("word", "The river, Anna!") == ["The", "river", ",", "Anna", "!"]
    assert pieces("character", "it was") == ["i", "t", " ", "w", "a", "s"]
    assert pieces("byte_bpe", "The river") == ["The", "Ġriver"] and pieces("bpe", "The river") == ["▁The", "▁river"]
    assert "".join(pieces("unigram", "The  new\nriver")) == "▁The▁new▁river"
    assert trained["byte_bpe"].decode(trained["byte_bpe"].encode("Ж 😀\n").ids) == "Ж 😀\n"
    spaced = train_tokenizer(iter(STORY), "wordpiece", 500, lowercase=True, cjk_spacing=False)
    assert len(spaced.encode("测试的文字", special=False).ids) < 5


PROGRAM = """
import sys, hashlib
from stemma.text.train_tokenizer import train_tokenizer
texts = ["".join(chr(97 + (i * j * 7 + j * j) % 26) + " " * (j % 5 == 0) for j in range(60)) for i in range(80)]
texts = texts + [text.upper() for text in texts[:9]] + ["é ж 中 😀 ∑"]
for kind in sys.argv[1:]:
    tokenizer = train_tokenizer(iter(texts), kind, 700, lowercase=False)
    print(kind, hashlib.sha256(tokenizer.backend.to_str().encode()).hexdigest(), tokenizer.fingerprint)
"""


def test_training_twice_gives_the_same_bytes():
    # Rust's hash maps are seeded per process, so each training runs in a separate process
    runs = [subprocess.run([sys.executable, "-c", PROGRAM, *KINDS], capture_output=True, text=True) for _ in range(3)]
    assert len(runs[0].stdout.splitlines()) == len(KINDS), runs[0].stderr
    assert runs[0].stdout == runs[1].stdout == runs[2].stdout


def test_only_requested_special_tokens_are_added():
    tokenizer = train_tokenizer(iter(STORY), "wordpiece", 400, lowercase=True, roles={"mask", "start"})
    assert tokenizer.special_token_ids == {"padding": 0, "unknown": 1, "start": 2,
                                           "mask": 3} and tokenizer.sentinels == []
    with pytest.raises(UserError, match=r'no token for the role "separator".*--for RECIPE'):
        tokenizer.special_id("separator")
    with pytest.raises(UserError, match='Did you mean "separator"'):
        tokenizer.special_id("seperator")
    with pytest.raises(UserError, match="no token role masque"):
        train_tokenizer(iter(STORY), "wordpiece", 400, lowercase=True, roles={"masque"})
    assert train_tokenizer(iter(STORY), "unigram", 200, lowercase=True,
                           roles={"sentinel"}).special_token_ids.keys() == {
        "padding", "unknown", "sentinel"}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_vocab_size_warns_and_a_small_one_is_an_error(kind, caplog):
    tokenizer = train_tokenizer(iter(STORY), kind, 5000, lowercase=False)
    (message,) = caplog.messages
    assert tokenizer.vocab_size < 5000 and f"only {tokenizer.vocab_size} pieces" in message
    least = 110 if kind not in ("word", "character") else 100
    with pytest.raises(UserError, match=f"vocabulary of {least} is too small"):
        train_tokenizer(iter(STORY), kind, least, lowercase=False)


@pytest.mark.parametrize("kind", KINDS)
def test_empty_text_and_reading_errors_are_raised(kind):
    def broken():
        yield from STORY
        raise UserError("byte 7")

    with pytest.raises(UserError, match="no text to train"):
        train_tokenizer(iter(["", " \n"]), kind, 500, lowercase=False)
    with pytest.raises(UserError, match="^byte 7$"):
        train_tokenizer(broken(), kind, 500, lowercase=False)


def test_an_unknown_kind_is_refused_with_a_suggestion():
    with pytest.raises(UserError, match='Did you mean "wordpiece"'):
        train_tokenizer(iter(STORY), "word_piece", 500, lowercase=False)


@pytest.mark.parametrize("layout", [BERT, ("A end", "A end B end"), ("begin A", "begin A separator B"), None])
@pytest.mark.parametrize("kind", KINDS)
def test_auto_tokenizer_agrees(trained, tmp_path, kind, layout):
    transformers = pytest.importorskip("transformers")
    tokenizer = trained[kind].with_template(*layout) if layout else trained[kind]
    trained[kind].save(tmp_path, *(layout or ()), max_length=77)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert reference.model_max_length == 77 and len(reference) == tokenizer.vocab_size
    for text in ODD:
        ours, theirs = tokenizer.encode(text), reference(text)
        assert (ours.ids, ours.attention_mask) == (theirs["input_ids"], theirs["attention_mask"])
        ours, theirs = tokenizer.encode(text, "Second text."), reference(text, "Second text.")
        assert ours.ids == theirs["input_ids"]
        assert ("token_type_ids" in theirs) == (layout == BERT)
        assert layout != BERT or ours.type_ids == theirs["token_type_ids"]
        assert tokenizer.decode(ours.ids) == reference.decode(ours.ids, skip_special_tokens=True)
    for role, name in (("padding", "pad"), ("mask", "mask"), ("separator", "sep"), ("begin", "bos"), ("end", "eos")):
        assert getattr(reference, f"{name}_token_id") == tokenizer.special_id(role)
    assert set(tokenizer.special_ids.tolist()) == set(reference.all_special_ids)


def test_auto_tokenizer_agrees_beside_a_bert_config(trained, tmp_path):
    transformers = pytest.importorskip("transformers")
    trained["wordpiece"].save(tmp_path, *BERT)
    transformers.BertConfig(vocab_size=trained["wordpiece"].vocab_size).save_pretrained(tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert all(reference(text, "B")["input_ids"] == tokenizer.encode(text, "B").ids for text in ODD)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_or_pickled_tokenizer_is_the_same(trained, tmp_path, kind):
    trained[kind].save(tmp_path, "start A separator", "start A separator B separator")
    first = trained[kind].with_template("start A separator", "start A separator B separator")
    again = pickle.loads(pickle.dumps(first))
    for other in (Tokenizer.load(tmp_path), Tokenizer.load(tmp_path / "tokenizer.json"), again):
        for name in ("kind", "lowercase", "vocab_size", "special_token_ids", "sentinels", "fingerprint"):
            assert getattr(other, name) == getattr(trained[kind], name)
        assert np.array_equal(other.special_ids, trained[kind].special_ids)
        assert [other.encode(text, "b").ids for text in ODD] == [first.encode(text, "b").ids for text in ODD]
    assert trained[kind].encode("The river").ids == first.encode("The river", special=False).ids  # template on a copy
    assert len({tokenizer.fingerprint for tokenizer in trained.values()}) == len(KINDS)


def test_offsets_exclude_leading_spaces(trained):
    text = "The river, Anna"
    offsets = trained["byte_bpe"].with_template("start A separator", "A B").encode(text).offsets
    assert [text[a:b] for a, b in offsets] == ["", "The", "river", ",", *[text[a:b] for a, b in offsets[4:-1]], ""]


BERT_PIECES = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "river", "##s", "中", "naive", "é"]


@pytest.mark.parametrize(("extra", "config", "lowercase"), [
    ([], None, True), (["The"], None, False), (["The"], {"do_lower_case": True}, True), (["Ⅷ"], None, True),
])  # fmt: skip
def test_a_bert_vocabulary_is_read(tmp_path, extra, config, lowercase):
    (tmp_path / "vocab.txt").write_text("\n".join(BERT_PIECES + extra) + "\n", encoding="utf-8")
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.kind == "wordpiece" and tokenizer.lowercase == lowercase
    assert tokenizer.special_token_ids == {"padding": 0, "unknown": 2, "start": 3, "separator": 4, "mask": 5}
    assert tokenizer.vocab_size == len(BERT_PIECES + extra)
    first = 6 if lowercase else tokenizer.token_to_id("The")
    assert tokenizer.encode("The rivers[MASK]", "中x").ids == [3, first, 7, 8, 5, 4, 9, 2, 4]
    assert tokenizer.encode("the", "the").type_ids == [0, 0, 0, 1, 1]
    transformers = pytest.importorskip("transformers")
    reference = transformers.BertTokenizer.from_pretrained(tmp_path, do_lower_case=lowercase)
    assert all(reference(text)["input_ids"] == tokenizer.encode(text).ids for text in ODD)


@pytest.mark.parametrize("names", [("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"),
                                   ("my-encoder.json", "my-vocab.bpe")])  # fmt: skip
@pytest.mark.parametrize("roberta", [False, True])
def test_gpt2_and_roberta_vocabularies_are_read(trained, tmp_path, names, roberta):
    model = json.loads(trained["byte_bpe"].backend.to_str())["model"]
    vocabulary = model["vocab"] if roberta else {
        piece: token_id for piece, token_id in model["vocab"].items() if token_id not in set(range(105))
    } | {"<|endoftext|>": 0}  # fmt: skip
    (tmp_path / names[0]).write_text(json.dumps(vocabulary))
    (tmp_path / names[1]).write_text("#version: 0.2\n" + "\n".join(" ".join(merge) for merge in model["merges"]))
    tokenizer = Tokenizer.load(tmp_path / names[0] if "my-" in names[0] else tmp_path)
    plain = trained["byte_bpe"].encode("The rivers Ж", special=False).ids
    assert tokenizer.kind == "byte_bpe" and tokenizer.encode("The rivers Ж", special=False).ids == plain
    if roberta:
        assert tokenizer.encode("The", "The").tokens == ["<s>", "The", "</s>", "</s>", "The", "</s>"]
    else:
        assert tokenizer.special_token_ids == {"unknown": 0, "begin": 0, "end": 0}
        assert tokenizer.encode("The<|endoftext|>").tokens == ["The", "<|endoftext|>"]


def test_a_gpt_vocabulary_is_read(tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps({"<unk>": 0, "a": 1, "b</w>": 2, "ab</w>": 3, "a</w>": 4}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.kind == "bpe" and tokenizer.lowercase and tokenizer.encode("AB a").ids == [3, 4]
    assert tokenizer.decode([3, 4]) == "ab a"


def test_unigram_has_a_piece_for_every_frequent_word():
    """Also for "they", although "the" is a piece. Texts have as few pieces as with SentencePiece's trainer."""
    sentencepiece = pytest.importorskip("sentencepiece")
    text = [line.lower() for topic in topics.values() for line in topic.splitlines() if line.strip()]
    text = text[:4000]
    ours = train_tokenizer(iter(text), "unigram", 2000, lowercase=True, roles=set())
    words = Counter(word for line in text for word in re.findall(r"(?<!\S)[a-z]{2,}(?!\S)", line))
    frequent = [word for word, _ in words.most_common(200)]
    assert "they" in frequent
    assert [word for word in frequent if len(ours.encode(word, special=False).ids) > 1] == []
    assert not any(unicodedata.category(character) == "Co" for piece in ours.backend.get_vocab() for character in piece)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(text), model_writer=model, vocab_size=2000,
                                             minloglevel=2, num_threads=1, character_coverage=1.0)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    count = sum(len(encoding.ids) for encoding in ours.encode_batch(text, special=False))
    assert count < 1.1 * sum(map(len, theirs.encode(text)))


def test_unigram_training_on_too_many_words_uses_the_frequent_ones(monkeypatch):
    monkeypatch.setattr(train_module, "MAX_DISTINCT_WORDS", 20)
    few, again = (train_tokenizer(iter([*STORY, "Once: ж."]), "unigram", 200, lowercase=False, roles=set())
                  for _ in range(2))
    assert few.backend.to_str() == again.backend.to_str()
    assert few.encode("river", special=False).tokens == ["▁river"]
    # all characters stay in the vocabulary
    assert few.special_id("unknown") not in few.encode("ж Once 14 naïve", special=False).ids


@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentencepiece_models_are_read_and_agree(tmp_path, kind, fallback):
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(STORY), model_writer=model, vocab_size=380 if fallback else 120, model_type=kind,
        byte_fallback=fallback, hard_vocab_limit=False, minloglevel=2, num_threads=1, user_defined_symbols=["<sep>"])
    (tmp_path / "spiece.model").write_bytes(model.getvalue())
    tokenizer, reference = Tokenizer.load(tmp_path), sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    assert tokenizer.kind == kind and tokenizer.vocab_size == reference.vocab_size()
    for text in [*ODD, *STORY, "ﬁne ＡＢＣ ½"]:
        assert tokenizer.encode(text, special=False).ids == reference.encode(text), text
        assert not fallback or tokenizer.decode(reference.encode(text)) == reference.decode(reference.encode(text))
    assert tokenizer.encode("old<sep> new", special=False).tokens[1:2] == ["<sep>"]
    (tmp_path / "spiece.model").write_bytes(model.getvalue()[:-20])
    with pytest.raises(UserError, match="spiece.model is no readable tokenizer"):
        Tokenizer.load(tmp_path)


def test_special_tokens_are_read_from_the_config(trained, tmp_path):
    trained["wordpiece"].save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config |= {"cls_token": {"content": "[S7]"}, "mask_token": "[nowhere]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.special_id("start") == tokenizer.sentinels[7] and tokenizer.special_id("mask") == 4


def test_a_loaded_tokenizer_neither_truncates_nor_pads(trained, tmp_path):
    trained["word"].save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                          "pad_type_id": 0, "pad_token": "[PAD]"}  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert len(Tokenizer.load(tmp_path).encode("the the the the the").ids) == 5


@pytest.mark.parametrize(("files", "message"), [
    ({}, "no tokenizer in"), ({"tokenizer.json": "{"}, "no readable tokenizer"), ({"tokenizer.json": "[]"}, "neither"),
    ({"tokenizer.json": '{"model": {}}'}, "no readable tokenizer"), ({"vocab.txt": "a\nb\n"}, r"\[UNK\] among them"),
    ({"vocab.txt": b"\xff\xfe"}, "no readable tokenizer"), ({"vocab.json": "{}"}, "no tokenizer in"),
    ({"vocab.json": '{"a": 0, "b": 1, "ab": 2}', "merges.txt": "a b c"}, "no pair: a b c"),
    ({"x.model": "nonsense"}, r"x\.model is no readable tokenizer"), ({"x.model": ""}, "without pieces"),
    ({"vocab.txt": "[UNK]\na", "tokenizer_config.json": "{"}, "tokenizer_config.json is damaged"),
])  # fmt: skip
def test_damaged_or_unknown_files_are_refused(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        Tokenizer.load(tmp_path)


def test_other_and_missing_files_are_refused(tmp_path):
    (tmp_path / "notes.pdf").write_bytes(b"%PDF")
    with pytest.raises(UserError, match="notes.pdf is no readable tokenizer"):
        Tokenizer.load(tmp_path / "notes.pdf")
    with pytest.raises(UserError, match="no such file or folder"):
        Tokenizer.load(tmp_path / "none")


def test_a_changed_byte_is_refused(trained, tmp_path):
    from stemma.atomic_files import write_checksums

    trained["word"].save(tmp_path)
    write_checksums(tmp_path)
    Tokenizer.load(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text().replace('"river"', '"liver"'))
    with pytest.raises(CorruptFileError, match="tokenizer.json is damaged"):
        Tokenizer.load(tmp_path)


def test_an_unknown_id_is_refused(trained):
    with pytest.raises(UserError, match="no token has the id 99999"):
        trained["word"].id_to_token(99999)
    assert trained["word"].token_to_id("zebra") is None


def test_padding_is_on_the_left_if_the_start_token_is_last(trained, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = trained["wordpiece"]
    tokenizer.save(tmp_path / "xlnet", "A separator start", "A separator B separator start")
    tokenizer.save(tmp_path / "bert", "start A separator", "start A separator B:1 separator:1")
    tokenizers = {name: AutoTokenizer.from_pretrained(tmp_path / name) for name in ("xlnet", "bert")}
    rows = {name: reference(["the river", "the old river of the north"], padding=True)["input_ids"]
            for name, reference in tokenizers.items()}
    assert {row[-1] for row in rows["xlnet"]} == {tokenizer.special_id("start")}
    assert {row[0] for row in rows["bert"]} == {tokenizer.special_id("start")}
