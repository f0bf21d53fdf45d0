from pathlib import Path

import numpy as np
import pytest
from small_corpora import corpus_of

from stemma.corpus.capitalization import starts_with_capital
from stemma.corpus.corpus import Corpus
from stemma.text.train_tokenizer import train_tokenizer

LINES = ["The Clerk of Zürich reads, NATO waits.", "ÉCOLE and école, Ǆ and ǅ, 东京 Tokyo.",
         "a  Bar\tBaz (Quux) \U0001d400"]


def build(folder: Path, kind: str, **options) -> Corpus:
    options = {"lowercase": False, **options}
    size = 400 if kind == "byte_bpe" else 150
    train_tokenizer(iter(LINES * 9), kind, size, roles={"mask"}, **options).save(folder / "t")
    return corpus_of(folder, [LINES, LINES[::-1]], folder / "t")


@pytest.mark.parametrize(("kind", "options"), [
    ("wordpiece", {"lowercase": True}), ("wordpiece", {"lowercase": False}), ("byte_bpe", {}), ("bpe", {}),
    ("unigram", {}), ("word", {"lowercase": True}), ("character", {})])
def test_capitals_are_annotated_with_every_tokenizer(tmp_path, kind, options):
    corpus = build(tmp_path, kind, **options)
    assert "capitals" in corpus.annotations()
    result = corpus.values_between("capitals", 0, corpus.num_tokens)
    starts, lengths = (corpus.values_between(name, 0, corpus.num_tokens) for name in ("starts", "lengths"))
    document = np.searchsorted(corpus.document_starts, np.arange(corpus.num_tokens), side="right") - 1
    for token in range(corpus.num_tokens):
        text = corpus.document_text(int(document[token]))[starts[token]:starts[token] + lengths[token]].lstrip()
        expected = bool(text) and (text[0].isupper() or text[0].istitle())
        assert result[token] == expected, (token, text)
    assert result.dtype == np.uint8 and 10 < result.sum() < corpus.num_tokens


def test_a_leading_space_of_a_token_is_ignored():
    starts, ends = np.array([0, 2, 6, 7]), np.array([2, 6, 7, 7])
    assert starts_with_capital("an Arm", starts, np.minimum(ends, 6)).tolist() == [0, 1, 0, 0]


def test_the_fingerprint_does_not_depend_on_capitals(tmp_path):
    corpus = build(tmp_path, "wordpiece", lowercase=True)
    before = corpus.fingerprint
    checksums = {name: value for name, value in corpus._checksums.items() if "capitals" not in name}
    assert len(checksums) < len(corpus._checksums)
    assert Corpus(corpus.path, {**corpus.manifest, "arrays": {name: kind for name, kind in
                  corpus.manifest["arrays"].items() if name != "capitals"}}, checksums).fingerprint == before
