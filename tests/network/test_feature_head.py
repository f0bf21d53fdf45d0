"""Feature-based transfer: layers mixed as in ELMo, read by a BiLSTM, independent of padding."""

from __future__ import annotations

import json

import pytest
import torch
import toy_tasks
from conftest import SEED
from safetensors.torch import load_file

import stemma
from stemma.errors import UserError
from stemma.network.feature_head import FeatureHead
from stemma.network.inputs_outputs import Stream
from stemma.network.network import Network
from stemma.recipe_loading import recipe
from stemma.tasks.runs.build_objective import build_task_objective
from stemma.tasks.runs.feature_extraction import feature_head
from stemma.tasks.runs.finetune import TaskArguments, finetune
from stemma.tasks.runs.finetune_run import input_encoder_for, predict_examples, read_split

SMALL = ["network.width=16", "network.heads=2", "network.layers=3", "network.feedforward=32"]


def network_of(head: FeatureHead) -> Network:
    torch.manual_seed(1)
    return Network(recipe("bert@tiny", SMALL).settings.network, 40, {"task": head}).eval()


@torch.no_grad()
def test_layers_are_mixed_as_in_elmo():
    head = network_of(FeatureHead(3, layers=2)).heads["task"]
    head.shares.copy_(torch.tensor([0.3, -1.2]))
    head.scale.fill_(2.5)
    layers = [torch.randn(2, 5, 16) for _ in range(4)]
    weight = torch.exp(torch.tensor(0.3)) / (torch.exp(torch.tensor(0.3)) + torch.exp(torch.tensor(-1.2)))
    expected = 2.5 * (weight * layers[2] + (1 - weight) * layers[3])  # the two top layers
    torch.testing.assert_close(head.mix_layers(layers), expected)


@torch.no_grad()
@pytest.mark.parametrize("layers, expected", [("concat4", [1, 2, 3]), ("last", [3]), ("before-last", [2]),
                                              ("embedding", [0])])
def test_the_layer_choices_of_berts_feature_based_experiments(layers, expected):
    settings = recipe("bert@tiny", SMALL).settings.network
    head = network_of(feature_head(settings, "tag", 3, layers)).heads["task"]
    hidden_states = [torch.randn(2, 5, 16) for _ in range(4)]
    concatenated = torch.cat([hidden_states[layer] for layer in expected], -1)
    torch.testing.assert_close(head.mix_layers(hidden_states), concatenated)
    assert head(hidden_states, torch.tensor([5, 3])).shape == (2, 5, 3)


@torch.no_grad()
@pytest.mark.parametrize("each", [False, True])
def test_rows_of_a_batch_do_not_affect_each_other(each):
    head = network_of(FeatureHead(3, layers=4, each=each)).heads["task"]
    layers, lengths = [torch.randn(3, 7, 16) for _ in range(4)], torch.tensor([2, 7, 4])
    together = head(layers, lengths)
    assert together.shape == ((3, 7, 3) if each else (3, 3)) and together.isfinite().all()
    for row, length in enumerate(lengths.tolist()):
        alone = head([layer[row:row + 1, :length] for layer in layers], torch.tensor([length]))[0]
        torch.testing.assert_close(together[row, :length] if each else together[row], alone)
    # a bidirectional LSTM reads the mixture; for one label per text, its outputs are max-pooled
    lstm_output, _ = head.reader(head.mix_layers([layer[1:2] for layer in layers]))
    torch.testing.assert_close(together[1], head.output(lstm_output if each else lstm_output.amax(1))[0])


def test_a_head_that_mixes_layers_gets_all_hidden_states():
    network = network_of(FeatureHead(2, layers=4))
    hidden = network({"encoder": Stream(torch.randint(0, 40, (2, 5)))})
    assert len(hidden.all_hidden_states("encoder")) == 4
    assert hidden.all_hidden_states("encoder")[-1] is hidden["encoder"]


@pytest.mark.parametrize("kind, layers, expected", [("classify", "all", FeatureHead(2, 4)),
                                                    ("pair", "last4", FeatureHead(2, 3)),
                                                    ("tag", "all", FeatureHead(2, 4, each=True))])
def test_the_number_of_mixed_layers_follows_the_option(kind, layers, expected):
    assert feature_head(recipe("bert@tiny", SMALL).settings.network, kind, 2, layers) == expected


@pytest.mark.parametrize("name, kind, layers, message", [
    ("bert@tiny", "qa", "all", "not for qa"), ("bert@tiny", "tag", "last5", "choose all, last4, concat4"),
    ("universal-transformer@tiny", "tag", "all", "recurrent depth")])
def test_unsupported_feature_extraction_is_refused(name, kind, layers, message):
    with pytest.raises(UserError, match=message):
        feature_head(recipe(name, SMALL).settings.network, kind, 2, layers)


@pytest.mark.parametrize("kind, family", [("classify", "bert@tiny"), ("tag", "gpt2@tiny")])
def test_only_the_feature_head_is_trained(tmp_path, kind, family):
    start = toy_tasks.save_model(tmp_path / "start", family)
    sets = toy_tasks.write_sets(tmp_path, kind, train=200, dev=100)
    result = finetune(TaskArguments(kind, sets, features="last4"), start, tmp_path / "run", epochs=8, seed=SEED,
                      changes=["training.batch_size=16", "training.learning_rate=1e-2"])
    assert result["metrics"]["dev"]["accuracy" if kind == "classify" else "f1"] > 0.7
    tuned, before = stemma.load(tmp_path / "run"), stemma.load(start)
    body = {name: tensor for name, tensor in before.network.state_dict().items() if not name.startswith("heads.")}
    after = tuned.network.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in body.items())
    card = tuned.task_config()
    assert card.heads["task"].layers == 2 and card.heads["task"].each is (kind == "tag")
    learner = build_task_objective(card, input_encoder_for(card, tuned.require_tokenizer()))
    examples = read_split(tmp_path / "run", "dev", card)
    saved = [json.loads(line)["prediction"] for line in (tmp_path / "run/dev.jsonl").read_text().splitlines()]
    for prediction, expected in zip(predict_examples(tuned, learner, examples), saved, strict=True):
        key = "label" if kind == "classify" else "tags"
        assert prediction[key] == expected[key]
    assert "heads.task.reader.weight_ih_l1_reverse" in load_file(tmp_path / "run/model/model.safetensors")


def test_the_network_learns_too_without_features(tmp_path):
    start = toy_tasks.save_model(tmp_path / "start", "bert@tiny")
    sets = toy_tasks.write_sets(tmp_path, "classify", train=64, dev=20)
    finetune(TaskArguments("classify", sets, features="all", frozen=False), start, tmp_path / "run", steps=4, seed=SEED)
    before, after = (stemma.load(folder).network.state_dict() for folder in (start, tmp_path / "run"))
    changed = {name for name, tensor in before.items()
               if not name.startswith("heads.") and not torch.equal(tensor, after[name])}
    assert any(name.startswith("embedding.") for name in changed)
    assert {name.split(".")[2] for name in changed if name.startswith("encoder.blocks.")} == {"0", "1"}
    assert after["heads.task.shares"].abs().max() > 0  # so does the mix
