"""Reading shards: gathers across shards agree with plain indexing, and every changed byte is detected."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers

from stemma.atomic_files import write_checksums
from stemma.corpus.build import build_corpus
from stemma.corpus.corpus import Corpus
from stemma.errors import CorruptFileError, UserError

WORDS = [f"w{number}" for number in range(50)]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Sixty documents of three sentences each, in shards of about 100 tokens."""
    folder = tmp_path_factory.mktemp("corpus")
    vocabulary = {token: index for index, token in enumerate(["[PAD]", "[UNK]", ".", *WORDS])}
    backend = Backend(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    (folder / "tokenizer").mkdir()
    backend.save(str(folder / "tokenizer" / "tokenizer.json"))
    rng = np.random.default_rng(0)
    text = "\n\n".join("\n".join(" ".join(rng.choice(WORDS, rng.integers(2, 9))) + "." for _ in range(3))
                       for _ in range(60))
    (folder / "text.txt").write_text(text)
    build_corpus([folder / "text.txt"], folder / "tokenizer", folder / "corpus", shard_tokens=100)
    return folder / "corpus"


@pytest.fixture
def copy(built, tmp_path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "corpus"))


def test_boundaries_are_consistent_and_documents_stay_in_one_shard(built):
    corpus = Corpus.open(built)
    assert len(corpus.manifest["shards"]) > 5
    assert len(corpus.document_starts) == 61 and len(corpus.sentence_starts) == 181
    assert set(corpus.document_starts) <= set(corpus.sentence_starts)
    assert corpus.document_starts[0] == 0
    assert corpus.document_starts[-1] == corpus.sentence_starts[-1] == corpus.num_tokens
    assert corpus.token_counts.sum() == corpus.num_tokens
    bounds = np.cumsum([0, *(shard["tokens"] for shard in corpus.manifest["shards"])])
    assert set(bounds) <= set(corpus.document_starts)  # no document crosses from a shard into the next
    assert (np.diff(bounds)[:-1] >= 100).all()


def test_values_at_and_between_agree_with_the_text(built):
    corpus = Corpus.open(built)
    text = (built.parent / "text.txt").read_text()
    words = text.replace(".", " .").split()
    vocabulary = corpus.tokenizer.backend.get_vocab()
    expected = np.array([vocabulary[word] for word in words])
    assert corpus.values_between("tokens", 0, corpus.num_tokens).tolist() == expected.tolist()
    index = np.random.default_rng(1).integers(0, corpus.num_tokens, (7, 3, 40))
    values = corpus.values_at("tokens", index)
    assert values.dtype == np.int32 and (values == expected[index]).all()
    for start, stop in np.sort(np.random.default_rng(2).integers(0, corpus.num_tokens + 1, (200, 2))):
        assert corpus.values_between("tokens", start, stop).tolist() == expected[start:stop].tolist()
    for document_index in range(60):
        document = corpus.document_text(document_index)
        assert document == text.split("\n\n")[document_index]
        start, stop = corpus.document_starts[document_index : document_index + 2]
        spans = zip(corpus.values_between("starts", start, stop), corpus.values_between("lengths", start, stop),
                    strict=True)
        assert [document[at : at + length] for at, length in spans] == document.replace(".", " .").split()


def test_dtypes_empty_ranges_and_out_of_range_indices(built):
    corpus = Corpus.open(built)
    all_indices = np.arange(corpus.num_tokens)
    for name, kind in {"tokens": np.int32, "word_starts": np.bool_, "starts": np.int64, "lengths": np.int32}.items():
        assert corpus.values_at(name, all_indices).dtype == corpus.values_between(name, 3, 3).dtype == kind
        assert (corpus.values_at(name, all_indices) == corpus.values_between(name, 0, corpus.num_tokens)).all()
        assert corpus.values_between(name, corpus.num_tokens, corpus.num_tokens).shape == (0,)
        assert corpus.values_at(name, np.zeros((0, 4), np.int64)).shape == (0, 4)
    for outside in (-1, corpus.num_tokens):
        with pytest.raises(IndexError):
            corpus.values_at("tokens", np.array([0, outside]))
    with pytest.raises(IndexError):
        corpus.values_between("tokens", 0, corpus.num_tokens + 1)
    with pytest.raises(KeyError, match="phrases"):
        corpus.values_at("phrases", all_indices)
    corpus.values_between("tokens", 0, 5)[:] = 0  # a copy: the files stay as they are
    assert Corpus.open(built).fingerprint == corpus.fingerprint


def test_a_side_array_in_the_manifest_is_read(copy):
    plain = Corpus.open(copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["arrays"]["phrases"] = "<i4"
    values = np.arange(plain.num_tokens, dtype="<i4")
    for shard in manifest["shards"]:
        part, values = np.split(values, [shard["tokens"]])
        (copy / shard["folder"] / "phrases.bin").write_bytes(part.tobytes())
    (copy / "manifest.json").write_text(json.dumps(manifest))
    write_checksums(copy)
    corpus = Corpus.open(copy)
    assert corpus.annotations() == ["capitals", "phrases"] and plain.annotations() == ["capitals"]
    index = np.array([[0, corpus.num_tokens - 1], [250, 99]])
    assert corpus.values_at("phrases", index).tolist() == index.tolist()
    assert corpus.fingerprint == plain.fingerprint


def test_the_fingerprint_depends_on_the_content_only(built, copy, tmp_path):
    assert Corpus.open(copy).fingerprint == Corpus.open(built).fingerprint
    (tmp_path / "other.txt").write_text("w1 w2.")
    build_corpus([tmp_path / "other.txt"], built.parent / "tokenizer", tmp_path / "other")
    assert Corpus.open(tmp_path / "other").fingerprint != Corpus.open(built).fingerprint


def test_a_pickled_corpus_maps_the_same_files(built):
    corpus = Corpus.open(built)
    data = pickle.dumps(corpus)
    assert len(data) < 1000
    assert pickle.loads(data).values_between("tokens", 50, 250).tolist() == corpus.values_between("tokens", 50,
                                                                                                  250).tolist()


def test_damage_to_any_file_is_refused(copy):
    files = sorted(file for file in copy.rglob("*") if file.is_file())
    names = {file.relative_to(copy).as_posix() for file in files}
    assert {"manifest.json", "counts.bin", "tokenizer/tokenizer.json", "shard-00001/text.bin"} <= names
    for file in files:
        content = file.read_bytes()
        middle = len(content) // 2
        altered = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        for damage in (altered, content[:-1], None):
            file.write_bytes(damage) if damage is not None else file.unlink()
            with pytest.raises(CorruptFileError, match="corpus build"):
                Corpus.open(copy)
        file.write_bytes(content)
    assert Corpus.open(copy).num_tokens  # the files are intact again


def test_sizes_are_checked_even_without_checksums(copy):
    file = copy / "shard-00002" / "lengths.bin"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(CorruptFileError, match="lengths.bin has"):
        Corpus.open(copy, verify=False)


def test_a_path_that_is_not_a_corpus_is_refused(built, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text("")
    for path, words in [(tmp_path / "none", "there is no corpus"), (tmp_path / "notes.txt", "is a file"),
                        (tmp_path / "run", "is a run"), (built.parent / "tokenizer", "is a tokenizer"),
                        (tmp_path, "not a corpus")]:
        with pytest.raises(UserError, match=words) as caught:
            Corpus.open(path)
        assert not isinstance(caught.value, CorruptFileError)
        assert "stemma corpus build" in str(caught.value)


def test_a_newer_format_is_refused(copy):
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, "version": 99}))
    write_checksums(copy)
    with pytest.raises(UserError, match="version 99"):
        Corpus.open(copy)
