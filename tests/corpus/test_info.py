"""`corpus info`: every value checked by hand on a tiny corpus."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from stemma.corpus import info as module
from stemma.corpus.build import build_corpus
from stemma.corpus.info import corpus_info, describe_corpus, length_histogram


@pytest.fixture
def corpus(tmp_path) -> Path:
    backend = Backend(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2, "unseen": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (tmp_path / "tokenizer").mkdir()
    backend.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    (tmp_path / "text.txt").write_text("a\nb a a\n\na b a a ?")
    build_corpus([tmp_path / "text.txt"], tmp_path / "tokenizer", tmp_path / "corpus", sentences="line")
    return tmp_path / "corpus"


def test_info_counts_documents_tokens_coverage_and_lengths(corpus):
    info = corpus_info(corpus)
    assert (info["documents"], info["sentences"], info["tokens"]) == (2, 3, 9)
    assert info["unknown_rate"] == pytest.approx(1 / 9)
    assert info["tokenizer"]["vocab_size"] == 4
    assert info["coverage"] == {"vocabulary_seen": 0.75, "top_1000": pytest.approx(1), "top_10000": pytest.approx(1)}
    frequency = np.array([6, 2, 1]) / 9
    assert info["unigram_loss"] == pytest.approx(-(frequency * np.log(frequency)).sum())
    assert info["document_lengths"] == [{"from": 4, "to": 7, "count": 2}]
    assert info["sentence_lengths"] == [{"from": 1, "to": 1, "count": 1}, {"from": 2, "to": 3, "count": 1},
                                        {"from": 4, "to": 7, "count": 1}]


def test_histogram_counts_every_length_once(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BOUNDARIES", 7)  # so that several chunks are needed
    lengths = np.random.default_rng(0).integers(1, 3000, 100)
    bins = length_histogram(np.cumsum([0, *lengths]))
    assert sum(b["count"] for b in bins) == 100
    assert all(b["count"] == sum(b["from"] <= length <= b["to"] for length in lengths) for b in bins)


def test_the_description_has_percentages_and_bars(corpus):
    text = describe_corpus(corpus_info(corpus))
    assert "11.111% of the tokens" in text and "75.0% of the pieces" in text
    assert text.count("█") == 30 + 3 * 30  # the most frequent length fills the bar
