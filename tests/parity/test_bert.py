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
    hf_model = reference.random_reference("bert", seed, kind, arguments)
    assert_agrees_both_ways(hf_model, tmp_path, seed)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh"])
def test_every_activation_agrees(tmp_path, activation):
    hf_model = reference.random_reference("bert", 5, "BertForMaskedLM", hidden_act=activation)
    model, back = load_both_ways(hf_model, tmp_path)
    assert_same_outputs(model, hf_model)
    assert_same_outputs(model, back)


def test_activations_are_distinguished(tmp_path):
    """The comparison can fail: another activation gives other outputs."""
    hf_model = reference.random_reference("bert", 5, "BertForMaskedLM", hidden_act="relu")
    hf_model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_act": "gelu"}))
    with pytest.raises(AssertionError, match="differs by"):
        assert_same_outputs(stemma.load(tmp_path), hf_model)


def test_unusual_settings_agree(tmp_path):
    """One segment, a large epsilon, dropout rates written as integers."""
    hf_model = reference.random_reference("bert", 2, "BertForPreTraining", type_vocab_size=1, layer_norm_eps=0.01,
                                          hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    model, back = load_both_ways(hf_model, tmp_path)
    assert_same_outputs(model, hf_model)
    assert back.config.layer_norm_eps == 0.01
    assert model.recipe.settings.network.dropout == 0.0


SAVED = [((), "BertForPreTraining", "AutoModelForPreTraining"),
         (("remove=objective.next_sentence",), "BertForMaskedLM", "AutoModelForMaskedLM"),
         (("remove=objective.masked_lm",), "BertForNextSentencePrediction", "AutoModelForNextSentencePrediction")]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("changes", "kind", "automatic"), SAVED, ids=["both", "masked-lm", "next-sentence"])
def test_a_saved_model_agrees_in_transformers(tmp_path, seed, changes, kind, automatic):
    sizes = reference.random_sizes(seed + 10)
    network = {"layers": sizes["layers"], "width": sizes["width"], "heads": sizes["heads"],
               "feedforward": sizes["inner"], "position.maximum": sizes["positions"], "activation": "gelu_tanh",
               "embedding.segments": sizes["segments"], "norm.epsilon": 1e-5}
    pairs = [f"network.{key}={value}" for key, value in network.items()]
    length = f"corpus.sequence_length={sizes['positions']}"
    model = stemma.build("bert", sizes["vocabulary"], [*pairs, length, *changes])
    reference.perturb(model.network, seed)
    stemma.save(model, tmp_path / "stemma")
    hf_model = reference.assert_loads_into(kind, tmp_path / "stemma")
    assert type(getattr(transformers, automatic).from_pretrained(tmp_path / "stemma")) is type(hf_model)
    assert_same_outputs(model, hf_model, seed=seed)
    assert model.parameter_count() == hf_model.num_parameters()
    assert_same_outputs(stemma.load(tmp_path / "stemma"), hf_model, seed=seed)


def test_a_unilm_is_a_bert_in_transformers(tmp_path, text_file):
    """UniLM trains four attention masks, and one of them is BERT's; it has six segments."""
    tokenizer = train_tokenizer(iter([text_file.read_text()]), "wordpiece", 300, lowercase=True)
    model = stemma.build("unilm@tiny", tokenizer.vocab_size)
    model.tokenizer = tokenizer
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    hf_model = reference.assert_loads_into("BertForPreTraining", tmp_path / "m")
    assert hf_model.config.type_vocab_size == 6
    assert_same_outputs(model, hf_model, atol=5e-4)  # a laptop size has larger initial weights, and rounding errors
    again = stemma.load(tmp_path / "m")
    assert again.recipe == model.recipe and again.load_warnings == []
    fill = transformers.pipeline("fill-mask", model=str(tmp_path / "m"), top_k=3)
    text = "the old clerk [MASK] a letter ."
    ids = tokenizer.with_template("start A separator", "A B").encode(text).ids
    mask_position = ids.index(tokenizer.special_id("mask"))
    expected = model.logits(torch.tensor([ids]))[0, mask_position].softmax(-1).topk(3)
    predictions = fill(text)
    assert [prediction["token"] for prediction in predictions] == expected.indices.tolist()
    assert [prediction["score"] for prediction in predictions] == pytest.approx(expected.values.tolist(), abs=1e-5)


def test_a_unilm_without_bidirectional_objectives_is_saved_as_type_stemma(tmp_path):
    model = stemma.build("unilm@tiny", 40, ["remove=objective.masked_lm", "remove=objective.next_sentence"])
    stemma.save(model, tmp_path / "m")
    assert json.loads((tmp_path / "m/config.json").read_text())["model_type"] == "stemma"
    assert_close(stemma.load(tmp_path / "m").logits(torch.arange(9)[None]), model.logits(torch.arange(9)[None]))


def test_auto_model_loads_the_body(tmp_path):
    hf_model = reference.random_reference("bert", 1, "BertForPreTraining")
    model, _ = load_both_ways(hf_model, tmp_path)
    body = transformers.AutoModel.from_pretrained(tmp_path / "stemma").eval()
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    torch.testing.assert_close(model.hidden(ids), body(ids).last_hidden_state, atol=1e-4, rtol=0)


def test_a_loaded_model_is_saved_to_the_same_bytes(tmp_path):
    load_both_ways(reference.random_reference("bert", 3, "BertForPreTraining"), tmp_path)
    stemma.save(stemma.load(tmp_path / "stemma"), tmp_path / "again")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "stemma" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
