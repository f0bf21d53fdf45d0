"""`embed --layer` and `--tokens`: hidden states of any layer, equal to a plain loop; errors."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from closeness import assert_close
from parity.reference import perturb

import stemma
from stemma import plugins, registry
from stemma.cli import main
from stemma.errors import UserError
from stemma.model import Model
from stemma.tasks import layer_states
from stemma.tasks.embed import embed, embed_tokens, token_arrays
from stemma.text.tokenizer import Tokenizer

TEXTS = ["the old clerk", "a young reader reads seven pages by the window", "北京 naïve 🙂", "scribe"]
SMALL = ["network.width=24", "corpus.sequence_length=32"]
NO_STATES = '''
from stemma.extend import Body, BodySettings, StackOutput, register

class OnlyLastSettings(BodySettings):
    required_keys = frozenset()

@register("body", "only_last", OnlyLastSettings)
class OnlyLast(Body):
    def __init__(self, network, part):
        super().__init__()

    def forward(self, x, stack_input):
        return StackOutput(x)
'''
TWO_WIDTHS = NO_STATES.replace("only_last", "two_widths").replace(
    "StackOutput(x)", "StackOutput(x, [x, x[..., :8], x] if stack_input.keep_hidden_states else None)")


def build(tokenizer_folder, name: str = "bert@tiny", *changes: str) -> Model:
    tokenizer = Tokenizer.load(tokenizer_folder)
    torch.manual_seed(0)
    built = stemma.build(name, tokenizer.vocab_size, [*SMALL, *changes])
    perturb(built.network, 0)
    built.tokenizer = tokenizer
    return built


@pytest.fixture(scope="module")
def model(tokenizer_folder):
    return build(tokenizer_folder)


def states_alone(model, text: str) -> tuple[list[str], list[torch.Tensor]]:
    """A plain loop over the blocks for one text, without padding."""
    corpus = model.recipe.settings.corpus
    encoding = model.tokenizer.with_template(corpus.single, corpus.pair).encode(text)
    stream = model.encoder_stream(torch.tensor([encoding.ids]))
    with torch.no_grad():
        output = model.network({"encoder": stream}, keep_hidden_states=True)
        assert_close(model.hidden(torch.tensor([encoding.ids])), output["encoder"])
    return encoding.tokens, [state[0] for state in output.all_hidden_states("encoder")]


@pytest.mark.parametrize("name", ["bert@tiny", "modernbert@tiny", "universal-transformer@tiny"])
@pytest.mark.parametrize("tokens", [1, 8192])
def test_each_layer_is_that_of_the_text_alone(name, tokens, tokenizer_folder, monkeypatch):
    monkeypatch.setattr(layer_states, "BATCH_TOKENS", tokens)
    model = build(tokenizer_folder, name)
    every = embed(model, TEXTS, layer="all")
    expected = np.stack([torch.stack([state.mean(0) for state in states_alone(model, text)[1]]) for text in TEXTS])
    assert every.shape == expected.shape and every.dtype == np.float32
    np.testing.assert_allclose(every, expected, atol=1e-5)
    for layer in range(expected.shape[1]):
        np.testing.assert_allclose(embed(model, TEXTS, layer=layer), expected[:, layer], atol=1e-5)
        np.testing.assert_allclose(embed(model, TEXTS, layer=layer - expected.shape[1]), expected[:, layer], atol=1e-5)
    np.testing.assert_allclose(embed(model, TEXTS, layer="mean"), expected.mean(1), atol=1e-5)
    np.testing.assert_allclose(embed(model, TEXTS), expected[:, -1], atol=1e-5)
    assert np.abs(every[:, 0] - every[:, -1]).max() > 0.01


def test_a_network_that_halts_early_has_the_states_of_all_steps(tokenizer_folder):
    model = build(tokenizer_folder, "universal-transformer@tiny", "network.layers=4")
    with torch.no_grad():
        model.network.encoder.halting.unit.weight.zero_()
        model.network.encoder.halting.unit.bias.fill_(9.0)  # every position halts at once
    every = embed(model, TEXTS, layer="all")
    assert every.shape == (4, 5, 24)
    np.testing.assert_allclose(every[:, 4], embed(model, TEXTS), atol=1e-6)
    np.testing.assert_allclose(every[:, 3], every[:, 4], atol=1e-6)


def test_static_vectors_are_rows_of_the_token_embedding(model):
    ids = model.tokenizer.encode("the old clerk the", special=False).ids
    (text,) = embed_tokens(model, ["the old clerk the"], "static")
    assert_close(text.vectors, model.network.embedding.tokens.weight[ids].detach().numpy())
    assert (text.vectors[0] == text.vectors[-1]).all()
    (contextual,) = embed_tokens(model, ["the old clerk the"], 0)  # layer 0 has positions
    assert np.abs(contextual.vectors[0] - contextual.vectors[-1]).max() > 1e-3


def test_static_vectors_of_a_factorized_embedding_have_its_width(tokenizer_folder):
    assert embed(build(tokenizer_folder, "albert@tiny", "network.embedding.width=8"), TEXTS, layer="static").shape == \
        (len(TEXTS), 8)


@pytest.mark.parametrize("layer", [None, 1, "all", "static"])
def test_token_vectors_have_offsets_and_no_special_tokens(model, layer):
    texts = embed_tokens(model, TEXTS, layer)
    for text, given in zip(texts, TEXTS, strict=True):
        tokens, states = states_alone(model, given)
        assert text.tokens == tokens[1:-1]  # without [CLS] and [SEP]
        if given.isascii():
            assert [token.removeprefix("##") for token in text.tokens] == \
                [given[start:end] for start, end in text.offsets]
        if layer in (None, 1):
            np.testing.assert_allclose(text.vectors, states[-1 if layer is None else 1][1:-1], atol=1e-5)
        elif layer == "all":
            np.testing.assert_allclose(text.vectors, torch.stack(states)[:, 1:-1], atol=1e-5)
    arrays = token_arrays(texts)
    assert arrays["text"].tolist() == [i for i, text in enumerate(texts) for _ in text.tokens]
    assert arrays["vectors"].shape[0] == len(arrays["token"]) == len(arrays["start"]) == len(arrays["end"])


def test_the_command_writes_layers_and_tokens(model, tmp_path, capsys):
    stemma.save(model, tmp_path / "m")
    (tmp_path / "lines.txt").write_text("\n".join(TEXTS) + "\n")

    def run(*words: str) -> dict:
        assert main(["embed", str(tmp_path / "m"), str(tmp_path / "lines.txt"), "--overwrite", "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)

    result = run("--out", str(tmp_path / "v.npy"), "--layer", "1")
    assert (result["vectors"], result["width"], result["layer"], result["layers"]) == (4, 24, "1", 1)
    assert_close(np.load(tmp_path / "v.npy"), embed(model, TEXTS, layer=1))
    assert_close(stemma.embed(model, TEXTS, layer="1"), model.embed(TEXTS, layer=1))
    assert run("--out", str(tmp_path / "v.npy"), "--layer", "all")["layers"] == 3
    assert_close(np.load(tmp_path / "v.npy"), embed(model, TEXTS, layer="all"))
    result = run("--out", str(tmp_path / "v.npz"), "--layer", "-2", "--tokens")
    stored = np.load(tmp_path / "v.npz")
    expected = token_arrays(model.embed_tokens(TEXTS, 1))
    assert set(stored) == set(expected) and result["vectors"] == len(expected["token"])
    assert all((stored[name] == expected[name]).all() for name in ("token", "text", "start", "end"))
    assert_close(stored["vectors"], expected["vectors"])
    assert main(["embed", str(tmp_path / "m"), str(tmp_path / "lines.txt"), "--out", str(tmp_path / "w.npy"), "--layer",
                 "all"]) == 0
    assert "4 vectors of size 24 for each of 3 layers in" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "message"), [
    (["--layer", "7"], "has the layers 0 (the embedding) to 2; -1 is the last one."),
    (["--layer", "-4"], "--layer is -4, and"),
    (["--layer", "top"], '--layer is "top"; give a number (0 is the embedding, -1 the last layer), static, mean or '
                         "all."),
    (["--tokens"], "v.npy does not end in .npz: --tokens writes several arrays.")])
def test_a_layer_that_is_not_there_is_one_sentence(model, words, message, tmp_path, capsys):
    stemma.save(model, tmp_path / "m")
    (tmp_path / "lines.txt").write_text("the old clerk\n")
    out = tmp_path / "v.npy"
    assert main(["embed", str(tmp_path / "m"), str(tmp_path / "lines.txt"), "--out", str(out), *words]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and not out.exists()


def test_a_body_without_layer_outputs_or_with_other_widths_says_so(tokenizer_folder, tmp_path, monkeypatch):
    for slot in registry.BUILT_IN:
        registry.entries(slot)
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    for name, content in (("only_last", NO_STATES), ("two_widths", TWO_WIDTHS)):
        (tmp_path / f"{name}.py").write_text(content)
        plugins.use_plugin(tmp_path / f"{name}.py")
    only_last = build(tokenizer_folder, "bert@tiny", "network.depth.kind=only_last")
    assert embed(only_last, TEXTS).shape == (4, 24)
    with pytest.raises(UserError, match="a body of kind only_last does not return the outputs of its layers; leave out "
                                        "--layer, or set it to static"):
        embed(only_last, TEXTS, layer=0)
    two = build(tokenizer_folder, "bert@tiny", "network.depth.kind=two_widths")
    assert embed(two, TEXTS, layer=1).shape == (4, 8)
    with pytest.raises(UserError, match=r"have different widths \(24, 8, 24\); choose one, from 0 to 2"):
        embed(two, TEXTS, layer="all")
