"""Swapped translation directions are detected by token frequencies, if the languages of both sides differ."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from conftest import small_text

from stemma.corpus.build import build_corpus
from stemma.corpus.corpus import Corpus
from stemma.corpus.translation_direction import FILE, fit_directions, read_directions, write_directions
from stemma.errors import CorruptFileError
from stemma.text.parallel import PairSource
from stemma.text.train_tokenizer import train_tokenizer


def corpus_of(folder, pairs) -> Corpus:
    folder.mkdir()
    sides = [folder / "source", folder / "target"]
    for side, lines in zip(sides, zip(*pairs, strict=True), strict=True):
        side.write_text("".join(f"{line}\n" for line in lines))
    train_tokenizer(iter(side.read_text() for side in sides), "word", 400, lowercase=True).save(folder / "tokenizer")
    build_corpus([], folder / "tokenizer", folder / "corpus", pairs=[PairSource(*sides)], workers=1)
    return Corpus.open(folder / "corpus")


def other_language(line: str) -> str:
    """The line with every word changed, except three that both languages share."""
    return " ".join(word if word in ("cellar", "window", "river") else word[::-1] + "en"
                    for word in line.lower().rstrip(".").split()) + " ."


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return [line for line in small_text(documents=60).split("\n") if line]


def test_token_frequencies_are_counted_per_side(tmp_path, lines):
    corpus = corpus_of(tmp_path / "made", [("a a b", "c"), ("a", "b c c")])
    result = fit_directions(corpus)
    tokens = [corpus.tokenizer.id_to_token(token_id) for token_id in result.token_ids]
    assert sorted(tokens) == ["a", "b", "c"] and result.token_ids.tolist() == sorted(result.token_ids.tolist())
    source, target = (dict(zip(tokens, np.exp(side), strict=True)) for side in (result.source_log_frequency,
                                                                                result.target_log_frequency))
    assert source == pytest.approx({"a": 3.5 / 5.5, "b": 1.5 / 5.5, "c": 0.5 / 5.5})
    assert target == pytest.approx({"a": 0.5 / 5.5, "b": 1.5 / 5.5, "c": 3.5 / 5.5})


def test_lines_in_the_target_language_are_detected(tmp_path, lines):
    corpus = corpus_of(tmp_path / "made", [(line, other_language(line)) for line in lines[:300]])
    write_directions(corpus, tmp_path)
    result = read_directions(tmp_path)
    assert result.divergence > 1.5
    source, target = ([encoding.ids for encoding in corpus.tokenizer.encode_batch(texts, special=False)]
                      for texts in (lines[300:350], list(map(other_language, lines[300:350]))))
    assert result.find_swapped(source) == [] and len(result.find_swapped(target)) > 40
    assert result.find_swapped([*source, *target[:30]]) == []  # most lines are in the source language
    assert result.log_odds([]) == 0.0 and result.find_swapped([[]]) == []


def test_nothing_is_detected_if_both_sides_have_the_same_language(tmp_path, lines):
    rng = random.Random(0)
    shorter = [(line, " ".join(word for word in line.split() if rng.random() < 0.5) or line) for line in lines[:300]]
    both = [(line, other_language(line))[::rng.choice((1, -1))] for line in lines[:300]]
    for name, pairs in (("summaries", shorter), ("both ways", both)):
        corpus = corpus_of(tmp_path / name, pairs)
        result = fit_directions(corpus)
        assert result.divergence < 0.5
        rows = [encoding.ids for encoding in corpus.tokenizer.encode_batch([b for _, b in pairs], special=False)]
        assert result.find_swapped(rows) == []


def test_only_parallel_corpora_have_directions(tmp_path, corpus_folder):
    write_directions(Corpus.open(corpus_folder), tmp_path)
    assert not (tmp_path / FILE).exists() and read_directions(tmp_path) is None
    (tmp_path / FILE).write_text(json.dumps({"tokens": [1]}))
    with pytest.raises(CorruptFileError, match=r"directions\.json cannot be read"):
        read_directions(tmp_path)
