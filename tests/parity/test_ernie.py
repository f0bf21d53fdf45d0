"""ERNIE agrees with `transformers` to 1e-4, both ways, for each of its classes, with task vectors and without."""

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
VECTORS = [{}, {"use_task_id": True}, {"use_task_id": True, "task_type_vocab_size": 5}]
PLAIN = ["remove=objective.dialogue_lm", "remove=objective.dialogue_mask", "remove=objective.phrase_mask",
         "remove=objective.entity_mask"]
SMALL = ["network.width=24", "network.heads=2", "network.feedforward=40"]


@pytest.mark.parametrize("vectors", VECTORS, ids=["none", "three", "five"])
@pytest.mark.parametrize(("kind", "arguments"), CLASSES)
def test_ernie_agrees_with_transformers(tmp_path, kind, arguments, vectors):
    theirs = reference.random_reference("ernie", 3, kind, arguments, hidden_act="relu", **vectors)
    assert_agrees_both_ways(theirs, tmp_path, 3)
    model = stemma.load(tmp_path / "ours")
    count = model.recipe.settings.network.embedding.tasks
    assert count == (theirs.config.task_type_vocab_size if vectors else 0)
    config = json.loads((tmp_path / "ours/config.json").read_text())
    assert (config["model_type"], config["use_task_id"]) == ("ernie", bool(vectors))


def test_every_task_has_its_embedding(tmp_path):
    theirs = reference.random_reference("ernie", 1, "ErnieForPreTraining", use_task_id=True, task_type_vocab_size=4)
    model, back = load_both_ways(theirs, tmp_path)
    ids = torch.randint(theirs.config.vocab_size, (4, 9), generator=torch.Generator().manual_seed(0))
    tasks = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        ours = model.network({"encoder": replace(model.encoder_stream(ids), task_ids=tasks)})["encoder"]
        for other in (theirs, back):
            expected = other.ernie(ids, task_type_ids=tasks[:, None].expand_as(ids)).last_hidden_state
            torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)
    assert float((ours[0] - model.hidden(ids)[0]).abs().max()) > 0.01, "without a word it is task 0, not 2"
    torch.testing.assert_close(ours[1], model.hidden(ids)[1], atol=1e-5, rtol=0)


def test_config_defaults_are_those_of_transformers(tmp_path):
    theirs = reference.random_reference("ernie", 2, "ErnieForMaskedLM")
    theirs.save_pretrained(tmp_path)
    for key in ("hidden_act", "layer_norm_eps", "use_task_id", "task_type_vocab_size", "hidden_dropout_prob"):
        reference.configure(tmp_path, **{key: ...})
    network = stemma.load(tmp_path).recipe.settings.network
    assert (network.activation, network.norm.epsilon, network.embedding.tasks) == ("gelu", 1e-12, 0)
    assert_same_outputs(stemma.load(tmp_path), theirs)


@pytest.mark.parametrize(("name", "tasks"), [("ernie@tiny", 0), ("ernie@tiny", 7)])
def test_transformers_takes_ours(tmp_path, name, tasks, text_file):
    tokenizer = train_tokenizer(iter([text_file.read_text()]), "wordpiece", 300, lowercase=True)
    model = stemma.build(name, tokenizer.vocab_size, [*PLAIN, *SMALL, f"network.embedding.tasks={tasks}"])
    model.tokenizer = tokenizer
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    theirs = reference.assert_loads_into("ErnieForMaskedLM", tmp_path / "m")
    assert type(transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "m")) is type(theirs)
    assert_same_outputs(model, theirs)
    assert model.parameter_count() == theirs.num_parameters()
    again = stemma.load(tmp_path / "m")
    assert_same_outputs(again, theirs)
    text = "the old clerk reads a letter ."
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    assert auto(text)["input_ids"] == tokenizer.with_template("start A separator", "A B").encode(text).ids


def test_a_bert_stays_a_bert(tmp_path):
    """Without task vectors the two are the same network; the recipe tells which it is."""
    for name, kind in (("bert@tiny", "bert"), ("ernie@tiny", "ernie")):
        stemma.save(stemma.build(name, 40, [*PLAIN] if kind == "ernie" else []), tmp_path / kind)
        assert json.loads((tmp_path / kind / "config.json").read_text())["model_type"] == kind
