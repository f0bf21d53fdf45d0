"""ERNIE agrees with `transformers` to 1e-4, in both directions, for each class, with and without task embeddings."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import transformers
from parity import reference
from parity.reference import assert_agrees_both_ways, assert_same_outputs, load_both_ways

import stemma
from stemma.text.train_tokenizer import train_tokenizer

CLASSES = [("ErnieForPreTraining", {}), ("ErnieModel", {}), ("ErnieModel", {"add_pooling_layer": False}),
           ("ErnieForMaskedLM", {}), ("ErnieForNextSentencePrediction", {})]
TASK_SETTINGS = [{}, {"use_task_id": True}, {"use_task_id": True, "task_type_vocab_size": 5}]
PLAIN = ["remove=objective.dialogue_lm", "remove=objective.dialogue_mask", "remove=objective.phrase_mask",
         "remove=objective.entity_mask"]
SMALL = ["network.width=24", "network.heads=2", "network.feedforward=40"]


@pytest.mark.parametrize("task_settings", TASK_SETTINGS, ids=["none", "three", "five"])
@pytest.mark.parametrize(("kind", "arguments"), CLASSES)
def test_ernie_agrees_with_transformers(tmp_path, kind, arguments, task_settings):
    hf_model = reference.random_reference("ernie", 3, kind, arguments, hidden_act="relu", **task_settings)
    assert_agrees_both_ways(hf_model, tmp_path, 3)
    model = stemma.load(tmp_path / "stemma")
    count = model.recipe.settings.network.embedding.tasks
    assert count == (hf_model.config.task_type_vocab_size if task_settings else 0)
    config = json.loads((tmp_path / "stemma/config.json").read_text())
    assert (config["model_type"], config["use_task_id"]) == ("ernie", bool(task_settings))


def test_every_task_has_its_embedding(tmp_path):
    hf_model = reference.random_reference("ernie", 1, "ErnieForPreTraining", use_task_id=True, task_type_vocab_size=4)
    model, back = load_both_ways(hf_model, tmp_path)
    ids = torch.randint(hf_model.config.vocab_size, (4, 9), generator=torch.Generator().manual_seed(0))
    tasks = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        hidden = model.network({"encoder": replace(model.encoder_stream(ids), task_ids=tasks)})["encoder"]
        for reference_model in (hf_model, back):
            expected = reference_model.ernie(ids, task_type_ids=tasks[:, None].expand_as(ids)).last_hidden_state
            torch.testing.assert_close(hidden, expected, atol=1e-4, rtol=0)
    assert float((hidden[0] - model.hidden(ids)[0]).abs().max()) > 0.01, "the default task is 0, not 2"
    torch.testing.assert_close(hidden[1], model.hidden(ids)[1], atol=1e-5, rtol=0)


def test_config_defaults_are_those_of_transformers(tmp_path):
    hf_model = reference.random_reference("ernie", 2, "ErnieForMaskedLM")
    hf_model.save_pretrained(tmp_path)
    for key in ("hidden_act", "layer_norm_eps", "use_task_id", "task_type_vocab_size", "hidden_dropout_prob"):
        reference.configure(tmp_path, **{key: ...})
    network = stemma.load(tmp_path).recipe.settings.network
    assert (network.activation, network.norm.epsilon, network.embedding.tasks) == ("gelu", 1e-12, 0)
    assert_same_outputs(stemma.load(tmp_path), hf_model)


@pytest.mark.parametrize(("name", "tasks"), [("ernie@tiny", 0), ("ernie@tiny", 7)])
def test_a_saved_model_agrees_in_transformers(tmp_path, name, tasks, text_file):
    tokenizer = train_tokenizer(iter([text_file.read_text()]), "wordpiece", 300, lowercase=True)
    model = stemma.build(name, tokenizer.vocab_size, [*PLAIN, *SMALL, f"network.embedding.tasks={tasks}"])
    model.tokenizer = tokenizer
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    hf_model = reference.assert_loads_into("ErnieForMaskedLM", tmp_path / "m")
    assert type(transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "m")) is type(hf_model)
    assert_same_outputs(model, hf_model)
    assert model.parameter_count() == hf_model.num_parameters()
    again = stemma.load(tmp_path / "m")
    assert_same_outputs(again, hf_model)
    text = "the old clerk reads a letter ."
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    assert hf_tokenizer(text)["input_ids"] == tokenizer.with_template("start A separator", "A B").encode(text).ids


def test_the_recipe_decides_between_bert_and_ernie(tmp_path):
    """Without task embeddings the two are the same network."""
    for name, kind in (("bert@tiny", "bert"), ("ernie@tiny", "ernie")):
        stemma.save(stemma.build(name, 40, [*PLAIN] if kind == "ernie" else []), tmp_path / kind)
        assert json.loads((tmp_path / kind / "config.json").read_text())["model_type"] == kind
