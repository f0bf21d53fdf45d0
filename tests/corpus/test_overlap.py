"""N-gram overlap: checked against sets of strings, and the false-positive rate of the Bloom filter."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from conftest import small_text

from stemma.corpus.overlap import measure_false_positives, overlap
from stemma.errors import UserError
from stemma.text.bloom_filter import BloomFilter
from stemma.text.ngrams import BATCH, ngram_batches, normalized_words
from stemma.text.readers import PASSAGE_LIMIT

FEW = 1000  # lookups, in tests that do not measure the false-positive rate


def ngram_strings(text: str, n: int) -> list[list[str]]:
    """The n-grams of each document as strings."""
    documents = [normalized_words(document) for document in text.split("\n\n")]
    return [[" ".join(words[at : at + n]) for at in range(len(words) - n + 1)] for words in documents]


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    corpus, evaluation = tmp_path / "corpus.txt", tmp_path / "test.txt"
    corpus.write_text(small_text(seed=1))
    evaluation.write_text(small_text(documents=10, seed=2) + "\n" + small_text(documents=2, seed=1) + "\nToo short.\n")
    return corpus, evaluation


@pytest.mark.parametrize("n", [1, 3, 8])
def test_overlap_fractions_match_a_count_with_strings(texts: tuple[Path, Path], n: int) -> None:
    corpus, evaluation = texts
    corpus_ngrams = {gram for grams in ngram_strings(corpus.read_text(), n) for gram in grams}
    evaluation_ngrams = ngram_strings(evaluation.read_text(), n)
    result = overlap([corpus], evaluation, n=n, lookups=FEW, show=100)
    assert result["n_grams"] == sum(map(len, evaluation_ngrams))
    assert result["overlapping_n_grams"] == sum(gram in corpus_ngrams for grams in evaluation_ngrams for gram in grams)
    fractions = {at: sum(gram in corpus_ngrams for gram in grams) / len(grams)
                 for at, grams in enumerate(evaluation_ngrams, 1) if grams}
    assert {row["document"]: row["share"] for row in result["worst"]} == {at: f for at, f in fractions.items() if f}
    assert result["overlapping_documents"] == [at for at, fraction in fractions.items() if fraction >= 0.5]
    assert result["too_short"] == sum(not grams for grams in evaluation_ngrams)
    assert result["documents"] == len(evaluation_ngrams)


def test_a_corpus_folder_has_the_overlap_of_its_text(corpus_folder: Path, text_file: Path, tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text(small_text(documents=5, seed=9))
    built, raw = (overlap([path], tmp_path / "test.txt", n=4, lookups=FEW) for path in (corpus_folder, text_file))
    assert {**built, "corpus": None} == {**raw, "corpus": None}
    assert overlap([corpus_folder], text_file, lookups=FEW)["share"] == 1.0


def test_case_and_punctuation_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text('"One, two; three" -- four\nfive (six) SEVEN eight: nine.')
    (tmp_path / "test.txt").write_text("one two three four five six seven eight\n\n"
                                       "nine eight seven six five four three two")
    result = overlap([tmp_path / "corpus.txt"], tmp_path / "test.txt", lookups=FEW)
    assert (result["overlapping_n_grams"], result["n_grams"]) == (1, 2)
    assert result["overlapping_documents"] == [1]


def test_chinese_characters_are_words(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("今天下午图书馆收到了一批旧书。")
    (tmp_path / "test.txt").write_text("图书馆收到了一批\n\n博物馆收到了一批")
    result = overlap([tmp_path / "corpus.txt"], tmp_path / "test.txt", lookups=FEW)
    assert [row["document"] for row in result["worst"]] == [1]
    assert result["share"] == 0.5


def test_ngrams_cross_batches_but_not_documents() -> None:
    rng = random.Random(0)
    long = [f"w{rng.randrange(50)}" for _ in range(BATCH + 100)]
    passages = [(0, "a b c"), (1, "d e"), (2, " ".join(long[:BATCH])), (2, " ".join(long[BATCH:])), (3, "x y z")]
    batches = list(ngram_batches(passages, 3))
    owners = np.concatenate([owners for _, owners in batches])
    assert len(batches) > 1
    assert np.bincount(owners).tolist() == [1, 0, len(long) - 2, 1]
    expected = np.concatenate([hashes for hashes, _ in ngram_batches([(0, " ".join(long))], 3)])
    assert (np.concatenate([hashes for hashes, _ in batches])[owners == 2] == expected).all()


@pytest.mark.parametrize(("capacity", "rate"), [(100, 1e-2), (1000, 1e-3), (50_000, 1e-2)])
def test_the_bloom_filter_has_the_requested_false_positive_rate(capacity: int, rate: float) -> None:
    inside = np.random.default_rng(1).integers(0, 2**64, capacity, dtype=np.uint64)
    bloom = BloomFilter(capacity, rate)
    bloom.add(inside)
    assert bloom.contains(inside).all()
    measured = measure_false_positives(bloom, 8, 500_000)
    assert measured["hits"] == pytest.approx(rate * 500_000, rel=0.35)
    assert bloom.implied_rate == pytest.approx(measured["measured"], rel=0.35)
    assert measured["measured"] < measured["at_most"] < 2 * rate


def test_a_small_bloom_filter_has_a_small_false_positive_rate() -> None:
    """Plain double hashing fails here: it gives 17 false positives in a million, and 1e-8 is requested."""
    bloom = BloomFilter(1000, 1e-8)
    bloom.add(np.random.default_rng(1).integers(0, 2**64, 1000, dtype=np.uint64))
    measured = measure_false_positives(bloom, 8, 2_000_000)
    assert measured["hits"] <= 1
    if not measured["hits"]:
        assert measured["at_most"] == pytest.approx(3 / 2_000_000, rel=0.02), "the rule of three"


def test_a_document_longer_than_a_passage_is_one_document(tmp_path: Path) -> None:
    rng = random.Random(4)
    long = " ".join(f"w{rng.randrange(10**6)}" for _ in range(60_000))
    assert len(long) > 2 * PASSAGE_LIMIT
    (tmp_path / "test.txt").write_text(f"{long}\n\none two three\n")
    result = overlap([tmp_path / "test.txt"], tmp_path / "test.txt", n=3, lookups=FEW, exclude=tmp_path / "rest.txt")
    assert (result["documents"], result["n_grams"]) == (2, 60_000 - 2 + 1)
    assert (result["share"], result["overlapping_documents"]) == (1.0, [1, 2])


def test_exclude_writes_the_other_documents_unchanged(texts: tuple[Path, Path], tmp_path: Path) -> None:
    corpus, evaluation = texts
    result = overlap([corpus], evaluation, threshold=0.9, exclude=tmp_path / "rest.txt", lookups=FEW)
    documents = evaluation.read_text().strip().split("\n\n")
    excluded = result["overlapping_documents"]
    assert 0 < len(excluded) < len(documents)
    assert (tmp_path / "rest.txt").read_text().strip().split("\n\n") == [
        text for at, text in enumerate(documents, 1) if at not in excluded]


@pytest.mark.parametrize(("options", "message"), [
    ({"n": 0}, "--n is 0"), ({"threshold": 0.0}, "--limit is 0"),
    ({"false_positives": 0.0}, "rate of 0 is out of reach"),
    ({"false_positives": 2.0}, "rate of 2 is out of reach"), ({"n": 10_000}, "no document of .* has 10000 words"),
])
def test_invalid_settings_are_refused(texts: tuple[Path, Path], options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        overlap([texts[0]], texts[1], **options)


def test_empty_missing_and_too_short_files_are_refused(texts: tuple[Path, Path], tmp_path: Path) -> None:
    corpus, _ = texts
    (tmp_path / "one.txt").write_text("word\n")
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(UserError, match="one.txt has no 8 words in a row in any of its 1 documents.*smaller --n"):
        overlap([corpus], tmp_path / "one.txt")
    with pytest.raises(UserError, match="no text in .*empty.txt"):
        overlap([tmp_path / "empty.txt"], corpus)
    with pytest.raises(UserError, match="read twice"):
        overlap(["-"], corpus)
    with pytest.raises(UserError, match="no such file"):
        overlap([corpus], tmp_path / "missing.txt")
