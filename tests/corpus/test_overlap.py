"""Overlap: counted as by hand with sets of strings, and a filter that keeps the rate it promises."""

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

FEW = 1000  # lookups, where the rate is not the question


def by_hand(text: str, n: int) -> list[list[str]]:
    """Each document's n-grams as strings."""
    documents = [normalized_words(document) for document in text.split("\n\n")]
    return [[" ".join(found[at : at + n]) for at in range(len(found) - n + 1)] for found in documents]


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    corpus, evaluation = tmp_path / "corpus.txt", tmp_path / "test.txt"
    corpus.write_text(small_text(seed=1))
    evaluation.write_text(small_text(documents=10, seed=2) + "\n" + small_text(documents=2, seed=1) + "\nToo short.\n")
    return corpus, evaluation


@pytest.mark.parametrize("n", [1, 3, 8])
def test_shares_equal_those_counted_with_strings(texts: tuple[Path, Path], n: int) -> None:
    corpus, evaluation = texts
    known = {gram for grams in by_hand(corpus.read_text(), n) for gram in grams}
    asked = by_hand(evaluation.read_text(), n)
    result = overlap([corpus], evaluation, n=n, lookups=FEW, show=100)
    assert result["n_grams"] == sum(map(len, asked))
    assert result["overlapping_n_grams"] == sum(gram in known for grams in asked for gram in grams)
    shares = {at: sum(gram in known for gram in grams) / len(grams) for at, grams in enumerate(asked, 1) if grams}
    assert {row["document"]: row["share"] for row in result["worst"]} == {at: s for at, s in shares.items() if s}
    assert result["overlapping_documents"] == [at for at, share in shares.items() if share >= 0.5]
    assert result["too_short"] == sum(not grams for grams in asked)
    assert result["documents"] == len(asked)


def test_a_corpus_folder_gives_what_its_text_gives(corpus_folder: Path, text_file: Path, tmp_path: Path) -> None:
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


def test_runs_do_not_cross_documents_but_cross_batches() -> None:
    rng = random.Random(0)
    long = [f"w{rng.randrange(50)}" for _ in range(BATCH + 100)]
    pieces = [(0, "a b c"), (1, "d e"), (2, " ".join(long[:BATCH])), (2, " ".join(long[BATCH:])), (3, "x y z")]
    batches = list(ngram_batches(pieces, 3))
    owners = np.concatenate([owners for _, owners in batches])
    assert len(batches) > 1
    assert np.bincount(owners).tolist() == [1, 0, len(long) - 2, 1]
    whole = np.concatenate([hashes for hashes, _ in ngram_batches([(0, " ".join(long))], 3)])
    assert (np.concatenate([hashes for hashes, _ in batches])[owners == 2] == whole).all()


@pytest.mark.parametrize(("capacity", "rate"), [(100, 1e-2), (1000, 1e-3), (50_000, 1e-2)])
def test_the_filter_keeps_its_rate(capacity: int, rate: float) -> None:
    inside = np.random.default_rng(1).integers(0, 2**64, capacity, dtype=np.uint64)
    bloom = BloomFilter(capacity, rate)
    bloom.add(inside)
    assert bloom.contains(inside).all()
    told = measure_false_positives(bloom, 8, 500_000)
    assert told["hits"] == pytest.approx(rate * 500_000, rel=0.35)
    assert bloom.implied_rate == pytest.approx(told["measured"], rel=0.35)
    assert told["measured"] < told["at_most"] < 2 * rate


def test_a_small_filter_keeps_a_small_rate() -> None:
    """Plain double hashing fails here: its few patterns give 17 false positives in a million where 1e-8 is promised."""
    bloom = BloomFilter(1000, 1e-8)
    bloom.add(np.random.default_rng(1).integers(0, 2**64, 1000, dtype=np.uint64))
    told = measure_false_positives(bloom, 8, 2_000_000)
    assert told["hits"] <= 1
    if not told["hits"]:
        assert told["at_most"] == pytest.approx(3 / 2_000_000, rel=0.02), "the rule of three"


def test_a_document_longer_than_a_passage_is_one_document(tmp_path: Path) -> None:
    rng = random.Random(4)
    long = " ".join(f"w{rng.randrange(10**6)}" for _ in range(60_000))
    assert len(long) > 2 * PASSAGE_LIMIT
    (tmp_path / "test.txt").write_text(f"{long}\n\none two three\n")
    result = overlap([tmp_path / "test.txt"], tmp_path / "test.txt", n=3, lookups=FEW, exclude=tmp_path / "rest.txt")
    assert (result["documents"], result["n_grams"]) == (2, 60_000 - 2 + 1)
    assert (result["share"], result["overlapping_documents"]) == (1.0, [1, 2])


def test_exclude_writes_the_others_unchanged(texts: tuple[Path, Path], tmp_path: Path) -> None:
    corpus, evaluation = texts
    result = overlap([corpus], evaluation, threshold=0.9, exclude=tmp_path / "rest.txt", lookups=FEW)
    documents = evaluation.read_text().strip().split("\n\n")
    gone = result["overlapping_documents"]
    assert 0 < len(gone) < len(documents)
    assert (tmp_path / "rest.txt").read_text().strip().split("\n\n") == [
        text for at, text in enumerate(documents, 1) if at not in gone]


@pytest.mark.parametrize(("options", "said"), [
    ({"n": 0}, "--n is 0"), ({"threshold": 0.0}, "--limit is 0"),
    ({"false_positives": 0.0}, "rate of 0 is out of reach"),
    ({"false_positives": 2.0}, "rate of 2 is out of reach"), ({"n": 10_000}, "no document of .* has 10000 words"),
])
def test_invalid_settings_are_refused(texts: tuple[Path, Path], options: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        overlap([texts[0]], texts[1], **options)


def test_files_that_cannot_be_compared(texts: tuple[Path, Path], tmp_path: Path) -> None:
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
