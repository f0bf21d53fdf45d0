"""`fill` and `embed`: predictions of masked tokens, vectors of lines."""

from __future__ import annotations

import io
import json
import sys

import numpy as np
import pytest

from stemma.cli import main

SMALL = ["network.width=32", "network.heads=2", "network.layers=1", "network.feedforward=64",
         "corpus.sequence_length=32", "training.batch_size=8", "training.warmup_steps=1"]
LINES = ["The old clerk reads a letter.", "a", "The printer forgets the family tree in the cellar before noon."]


@pytest.fixture(scope="module")
def model(tmp_path_factory, corpus_folder):
    out = tmp_path_factory.mktemp("model") / "run"
    assert main(["pretrain", "bert@tiny", "--corpus", str(corpus_folder), "--out", str(out), "--steps", "3",
                 *SMALL]) == 0
    return out


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.mark.parametrize("mask", ["[MASK]", "<mask>"])
def test_fill_predicts_each_mask(model, capsys, mask):
    assert run("fill", model, f"the old {mask} reads {mask} letter", "--top", 3, "--json") == 0
    predictions = json.loads(capsys.readouterr().out)["predictions"]
    assert [prediction["position"] for prediction in predictions] == [3, 5]
    for prediction in predictions:
        probabilities = [candidate["probability"] for candidate in prediction["candidates"]]
        assert len(probabilities) == 3 and probabilities == sorted(probabilities, reverse=True)
        assert 0 < sum(probabilities) <= 1


def test_fill_reads_the_model_folder_and_prints_five_predictions(model, capsys):
    assert run("fill", model / "model", "the [MASK] reads") == 0
    assert capsys.readouterr().out.count("%") == 5


def test_embed_writes_a_vector_for_each_line_in_order(model, tmp_path, capsys):
    text = tmp_path / "lines.txt"
    text.write_text("\n".join(LINES) + "\n")
    assert run("embed", model, text, "--out", tmp_path / "deep/all.npy", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    vectors = np.load(tmp_path / "deep/all.npy")
    assert vectors.shape == (3, 32) == (result["vectors"], result["width"]) and vectors.dtype == np.float32
    for index, line in enumerate(LINES):
        text.write_text(line)
        assert run("embed", model, text, "--out", tmp_path / "one.npy", "--overwrite") == 0
        np.testing.assert_allclose(np.load(tmp_path / "one.npy")[0], vectors[index], atol=1e-5)
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["all.npy", "lines.txt", "one.npy"]


def test_embed_pools_and_normalizes(model, tmp_path, monkeypatch):
    vectors = {}
    for name, options in {"mean": [], "start": ["--pooling", "start"], "unit": ["--normalize"]}.items():
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(LINES).encode())))
        assert run("embed", model, "-", "--out", tmp_path / f"{name}.npy", *options) == 0
        vectors[name] = np.load(tmp_path / f"{name}.npy")
    np.testing.assert_allclose(np.linalg.norm(vectors["unit"], axis=1), 1, rtol=1e-5)
    lengths = np.linalg.norm(vectors["mean"], axis=1, keepdims=True)
    np.testing.assert_allclose(vectors["unit"], vectors["mean"] / lengths, atol=1e-6)
    assert np.abs(vectors["start"] - vectors["mean"]).max() > 1e-3
