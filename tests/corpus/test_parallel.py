"""A parallel corpus: every document is a source and its target, as two sentences."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import small_text

from stemma.atomic_files import write_checksums
from stemma.corpus import text_batches
from stemma.corpus.build import build_corpus
from stemma.corpus.corpus import Corpus
from stemma.corpus.info import corpus_info, describe_corpus
from stemma.errors import UserError
from stemma.text.parallel import PairSource
from stemma.text.train_tokenizer import train_tokenizer


def random_pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Pairs whose sides have several sentences, which a sentence splitter would split."""
    rng = random.Random(seed)
    sentences = [line for line in small_text(20).split("\n") if line]
    return [(" ".join(rng.choices(sentences, k=rng.randint(1, 3))), " ".join(rng.choices(sentences, k=1)).upper())
            for _ in range(count)]


def write_pairs(folder: Path, pairs: list[tuple[str, str]], **options) -> PairSource:
    folder.mkdir(exist_ok=True)
    for side, name in enumerate(("source", "target")):
        (folder / name).write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    return PairSource(folder / "source", folder / "target", **options)


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_every_document_is_two_sentences_with_the_tokens_of_each_side(tmp_path, kind):
    tokenizer = train_tokenizer(iter([small_text()]), kind, 500, lowercase=kind == "wordpiece")
    pairs = [*random_pairs(200), ("旧书 有 页。", "Hello. World! It is 3 p.m. now.")]
    result = build_corpus([], tokenizer, tmp_path / "corpus", pairs=[write_pairs(tmp_path / "text", pairs)])
    assert result["pairs"] and result["documents"] == 201 and result["sentences"] == 402
    corpus = Corpus.open(tmp_path / "corpus")
    assert corpus.manifest["pairs"] is True
    np.testing.assert_array_equal(corpus.document_starts, corpus.sentence_starts[::2])
    for index, sides in enumerate(pairs):
        for side, text in enumerate(sides):
            start, stop = corpus.sentence_starts[2 * index + side:][:2]
            expected = tokenizer.backend.encode(text, add_special_tokens=False).ids
            assert corpus.values_between("tokens", start, stop).tolist() == expected
    # character offsets count through the document, whose text has one line per side
    assert corpus.document_text(200) == "\n".join(pairs[200])
    start, stop = corpus.sentence_starts[401:403]
    first, length = corpus.values_between("starts", start, stop), corpus.values_between("lengths", start, stop)
    token_texts = [corpus.document_text(200)[a:a + n] for a, n in zip(first, length, strict=True)]
    assert "".join(token_texts).replace(" ", "") == pairs[200][1].replace(" ", "")


def test_the_bytes_are_the_same_for_any_number_of_workers(tmp_path, tokenizer_folder, monkeypatch):
    monkeypatch.setattr(text_batches, "BATCH_CHARACTERS", 3000)
    sources = [write_pairs(tmp_path / "a", [*random_pairs(150), ("no target", "\u200d")], name="a", prefix="one: "),
               write_pairs(tmp_path / "b", random_pairs(60, seed=1), name="b")]
    contents = []
    for workers in (1, 3):
        out = tmp_path / f"by-{workers}"
        build_corpus([], tokenizer_folder, out, workers=workers, pairs=sources, shard_tokens=900)
        contents.append({str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*") if file.is_file()})
    assert contents[0] == contents[1]
    manifest = json.loads(contents[0]["manifest.json"])
    assert len(manifest["shards"]) > 2 and manifest["documents"] == 210
    assert manifest["groups"] == [{"name": "a", "prefix": "one: ", "first": 0, "documents": 150},
                                  {"name": "b", "prefix": "", "first": 150, "documents": 60}]
    corpus = Corpus.open(tmp_path / "by-3")
    assert corpus.document_text(149).startswith("one: ") and not corpus.document_text(150).startswith("one: ")


def test_a_pair_with_an_empty_side_is_dropped(tmp_path, tokenizer_folder, caplog):
    pairs = [("a letter", "the printer"), ("a letter", "\u200d\u200d"), ("\u200d", "a letter"), ("a page", "one leaf")]
    build_corpus([], tokenizer_folder, tmp_path / "corpus", pairs=[write_pairs(tmp_path / "text", pairs)])
    corpus = Corpus.open(tmp_path / "corpus")
    assert [corpus.document_text(index) for index in range(2)] == ["a letter\nthe printer", "a page\none leaf"]
    assert corpus.manifest["documents"] == 2 and corpus.manifest["groups"][0]["documents"] == 2
    assert caplog.messages == ["2 pairs are left out: one of their sides has no token that this tokenizer can make."]


def test_unequal_numbers_of_lines_are_refused_and_leave_no_corpus(tmp_path, tokenizer_folder):
    source = write_pairs(tmp_path / "text", random_pairs(5))
    Path(source.target).write_text("only\none\n")
    with pytest.raises(UserError, match="has 5 lines and .* 2;"):
        build_corpus([], tokenizer_folder, tmp_path / "corpus", pairs=[source])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text"]


def test_info_describes_the_pairs(tmp_path, tokenizer_folder, corpus_folder):
    sources = [write_pairs(tmp_path / name, random_pairs(7), name=name) for name in ("ab", "cd")]
    build_corpus([], tokenizer_folder, tmp_path / "corpus", pairs=sources)
    info = corpus_info(tmp_path / "corpus")
    assert info["pairs"] is True and [group["name"] for group in info["groups"]] == ["ab", "cd"]
    assert "a source and its target" in describe_corpus(info) and "ab 7, cd 7" in describe_corpus(info)
    plain = corpus_info(corpus_folder)
    assert plain["pairs"] is False and "target" not in describe_corpus(plain)


def test_a_corpus_from_before_pairs_existed_is_read_as_plain_text(tmp_path, corpus_folder):
    shutil.copytree(corpus_folder, tmp_path / "old")
    manifest = json.loads((tmp_path / "old" / "manifest.json").read_text())
    del manifest["pairs"], manifest["groups"]
    (tmp_path / "old" / "manifest.json").write_text(json.dumps(manifest))
    write_checksums(tmp_path / "old")
    assert corpus_info(tmp_path / "old")["pairs"] is False
    assert Corpus.open(tmp_path / "old").fingerprint == Corpus.open(corpus_folder).fingerprint
