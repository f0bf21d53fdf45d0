"""`embed` gives one vector per text, independent of the batch, and equal to a plain loop."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from closeness import assert_close
from parity.reference import perturb

import stemma
from stemma.cli import main
from stemma.errors import UserError
from stemma.tasks import layer_states as module
from stemma.tasks.embed import embed
from stemma.text.tokenizer import Tokenizer

TEXTS = ["the old clerk", "", "a young reader reads seven pages by the window", "北京 naïve 🙂", "the " * 40, "scribe"]


@pytest.fixture(scope="module")
def model(tokenizer_folder):
    tokenizer = Tokenizer.load(tokenizer_folder)
    torch.manual_seed(0)
    built = stemma.build("bert@tiny", tokenizer.vocab_size, ["network.width=24", "corpus.sequence_length=20"])
    perturb(built.network, 0)
    built.tokenizer = tokenizer
    return built


def alone(model, text: str, pooling: str = "mean") -> np.ndarray:
    """A plain loop: one text at a time, without padding."""
    ids = model.tokenizer.encode(text, special=False).ids[:18]
    hidden = model.hidden(torch.tensor([[model.tokenizer.special_id("start"), *ids,
                                         model.tokenizer.special_id("separator")]]))[0]
    return (hidden.mean(0) if pooling == "mean" else hidden[0]).numpy()


@pytest.mark.parametrize("pooling", ["mean", "start"])
@pytest.mark.parametrize("tokens", [1, 30, 8192])
def test_embeddings_do_not_depend_on_the_batch(model, pooling, tokens, monkeypatch):
    monkeypatch.setattr(module, "BATCH_TOKENS", tokens)
    vectors = embed(model, TEXTS, pooling)
    assert vectors.shape == (len(TEXTS), 24) and vectors.dtype == np.float32
    for row, text in zip(vectors, TEXTS, strict=True):
        np.testing.assert_allclose(row, alone(model, text, pooling), atol=1e-5)


def test_embeddings_differ_and_can_be_normalized(model):
    plain, unit = embed(model, TEXTS), embed(model, TEXTS, normalize=True)
    assert np.abs(plain[0] - plain[2]).max() > 0.01
    np.testing.assert_allclose(unit, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6)


def test_a_long_text_is_truncated_with_a_warning_and_keeps_its_end_token(model, caplog):
    embed(model, TEXTS)
    message = "1 of 6 texts are longer than the 20 tokens of the model, and were truncated."
    assert caplog.messages == [message]
    assert embed(model, TEXTS[:3]).shape == (3, 24) and caplog.messages == [message]


def test_no_texts_give_no_embeddings(model):
    assert embed(model, []).shape == (0, 24)


def test_an_unknown_pooling_is_rejected(model):
    with pytest.raises(UserError, match='--pooling is "max"; choose mean or start'):
        embed(model, TEXTS, "max")


def test_the_command_writes_what_the_function_returns(model, tmp_path, capsys):
    stemma.save(model, tmp_path / "m")
    lines = ["the old clerk", "a young reader reads", "seven pages"]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    out = tmp_path / "new" / "v.npy"
    command = ["embed", str(tmp_path / "m"), str(tmp_path / "lines.txt"), "--out", str(out), "--json"]
    assert main(command) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["vectors"], result["width"], result["pooling"]) == (3, 24, "mean")
    assert_close(np.load(out), embed(model, lines))
    assert main(command) == 2  # it is there already
    assert "not empty" in capsys.readouterr().err
