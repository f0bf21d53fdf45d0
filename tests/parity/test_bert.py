"""BERT agrees with `transformers` to 1e-4, in both directions, for each of its classes."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from closeness import assert_close
from parity import reference
from parity.reference import SEEDS, assert_agrees_both_ways, assert_same_outputs, load_both_ways

import stemma
from stemma.text.train_tokenizer import train_tokenizer

CLASSES = [("BertForPreTraining", {}), ("BertModel", {}), ("BertModel", {"add_pooling_layer": False}),
           ("BertForMaskedLM", {}), ("BertForNextSentencePrediction", {})]
NAMES = ["pretraining", "model", "model-without-pooler", "masked-lm", "next-sentence"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("kind", "arguments"), CLASSES, ids=NAMES)
def test_bert_agrees_with_transformers(tmp_path, seed, kind, arguments):
    theirs = reference.random_reference("bert", seed, kind, arguments)
    assert_agrees_both_ways(theirs, tmp_path, seed)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh"])
def test_every_activation_agrees(tmp_path, activation):
    theirs = reference.random_reference("bert", 5, "BertForMaskedLM", hidden_act=activation)
    model, back = load_both_ways(theirs, tmp_path)
    assert_same_outputs(model, theirs)
    assert_same_outputs(model, back)


def test_activations_are_distinguished(tmp_path):
    """The comparison can fail: a network with another activation is not the same."""
    theirs = reference.random_reference("bert", 5, "BertForMaskedLM", hidden_act="relu")
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_act": "gelu"}))
    with pytest.raises(AssertionError, match="differs by"):
        assert_same_outputs(stemma.load(tmp_path), theirs)


def test_unusual_settings_agree(tmp_path):
    """One segment only, a coarse epsilon, dropout rates written as whole numbers."""
    theirs = reference.random_reference("bert", 2, "BertForPreTraining", type_vocab_size=1, layer_norm_eps=0.01,
                                        hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    model, back = load_both_ways(theirs, tmp_path)
    assert_same_outputs(model, theirs)
    assert back.config.layer_norm_eps == 0.01
    assert model.recipe.settings.network.dropout == 0.0


OURS = [((), "BertForPreTraining", "AutoModelForPreTraining"),
        (("remove=objective.next_sentence",), "BertForMaskedLM", "AutoModelForMaskedLM"),
        (("remove=objective.masked_lm",), "BertForNextSentencePrediction", "AutoModelForNextSentencePrediction")]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("changes", "kind", "automatic"), OURS, ids=["both", "masked-lm", "next-sentence"])
def test_transformers_agrees_with_ours(tmp_path, seed, changes, kind, automatic):
    sizes = reference.random_sizes(seed + 10)
    network = {"layers": sizes["layers"], "width": sizes["width"], "heads": sizes["heads"],
               "feedforward": sizes["inner"], "position.maximum": sizes["places"], "activation": "gelu_tanh",
               "embedding.segments": sizes["segments"], "norm.epsilon": 1e-5}
    pairs = [f"network.{key}={value}" for key, value in network.items()]
    model = stemma.build("bert", sizes["vocabulary"], [*pairs, f"corpus.sequence_length={sizes['places']}", *changes])
    reference.perturb(model.network, seed)
    stemma.save(model, tmp_path / "ours")
    theirs = reference.assert_loads_into(kind, tmp_path / "ours")
    assert type(getattr(transformers, automatic).from_pretrained(tmp_path / "ours")) is type(theirs)
    assert_same_outputs(model, theirs, seed=seed)
    assert model.parameter_count() == theirs.num_parameters()
    assert_same_outputs(stemma.load(tmp_path / "ours"), theirs, seed=seed)


def test_a_unilm_is_a_bert_in_transformers(tmp_path, text_file):
    """Four ways to read were learned, and one of them is BERT's; its six segments are only more segments."""
    tokenizer = train_tokenizer(iter([text_file.read_text()]), "wordpiece", 300, lowercase=True)
    model = stemma.build("unilm@tiny", tokenizer.vocab_size)
    model.tokenizer = tokenizer
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    theirs = reference.assert_loads_into("BertForPreTraining", tmp_path / "m")
    assert theirs.config.type_vocab_size == 6
    assert_same_outputs(model, theirs)
    again = stemma.load(tmp_path / "m")
    assert again.recipe == model.recipe and again.load_warnings == []
    fill = transformers.pipeline("fill-mask", model=str(tmp_path / "m"), top_k=3)
    text = "the old clerk [MASK] a letter ."
    given = tokenizer.with_template("start A separator", "A B").encode(text).ids
    place = given.index(tokenizer.special_id("mask"))
    expected = model.logits(torch.tensor([given]))[0, place].softmax(-1).topk(3)
    told = fill(text)
    assert [each["token"] for each in told] == expected.indices.tolist()
    assert [each["score"] for each in told] == pytest.approx(expected.values.tolist(), abs=1e-5)


def test_a_cloze_that_never_saw_both_sides_is_no_bert(tmp_path):
    model = stemma.build("unilm@tiny", 40, ["remove=objective.masked_lm", "remove=objective.next_sentence"])
    stemma.save(model, tmp_path / "m")
    assert json.loads((tmp_path / "m/config.json").read_text())["model_type"] == "stemma"
    assert_close(stemma.load(tmp_path / "m").logits(torch.arange(9)[None]), model.logits(torch.arange(9)[None]))


def test_auto_model_takes_the_body_of_any_of_them(tmp_path):
    theirs = reference.random_reference("bert", 1, "BertForPreTraining")
    model, _ = load_both_ways(theirs, tmp_path)
    body = transformers.AutoModel.from_pretrained(tmp_path / "ours").eval()
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    torch.testing.assert_close(model.hidden(ids), body(ids).last_hidden_state, atol=1e-4, rtol=0)


def test_equal_weights_are_equal_bytes(tmp_path):
    load_both_ways(reference.random_reference("bert", 3, "BertForPreTraining"), tmp_path)
    stemma.save(stemma.load(tmp_path / "ours"), tmp_path / "again")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
