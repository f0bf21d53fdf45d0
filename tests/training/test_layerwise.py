"""Layer-wise learning rates, frozen layers, gradual unfreezing and reinitialized layers."""

from __future__ import annotations

import pytest
import torch
from literal.electra_layers import get_layer_lrs

from stemma.errors import UserError
from stemma.objectives import build_network
from stemma.recipe_loading import recipe
from stemma.training.layerwise import LayerFreezing, layer_lr_scales
from stemma.training.optimizers import AdamWSettings, build_optimizer, set_learning_rate
from stemma.training.weight_transfer import reinitialized_names

SMALL = ["network.width=16", "network.heads=2", "network.layers=3", "network.feedforward=32",
         "tokenizer.vocab_size=50"]


def network_of(name, *changes):
    resolved = recipe(name, [*SMALL, *changes])
    torch.manual_seed(0)
    return resolved, build_network(resolved, 50)


def depths_of(network):
    return {name: group.layer_index for group in network.parameter_groups() for name in group.parameters}


def trainable_layers(network):
    depths = depths_of(network)
    return {depths[name] for name, parameter in network.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("name, parts", [
    ("bert@tiny", {"embedding.tokens.weight": 0, "encoder.blocks.0.attention.input.weight": 1,
                   "encoder.blocks.2.feedforward.output.bias": 3, "heads.vocabulary.bias": 4,
                   "heads.pooler.dense.weight": 4}),
    ("gpt2@tiny", {"embedding.position.table.weight": 0, "encoder.final_norm.weight": 3}),
    ("t5@tiny", {"encoder.near.table.weight": 1, "encoder.final_norm.weight": 3, "decoder.near.table.weight": 4,
                 "decoder.blocks.0.cross.query.weight": 4, "decoder.blocks.1.cross.query.weight": 5,
                 "decoder.final_norm.weight": 5}),
    ("electra@tiny", {"encoder.blocks.1.attention.input.weight": 2, "heads.replaced_token.output.weight": 4,
                      "generator.encoder.blocks.0.attention.input.weight": 4}),
])
def test_every_parameter_belongs_to_a_layer(name, parts):
    _, network = network_of(name, *(["network.decoder.layers=2"] if name.startswith("t5") else []))
    result = depths_of(network)
    assert result.keys() == {name for name, _ in network.named_parameters()}
    assert set(result.values()) >= set(range(network.num_layers + 1))
    assert network.num_layers == network.settings.total_layers
    expected = {name: depth for name, depth in parts.items() if name in result}
    assert {name: result[name] for name in expected} == expected and len(expected) >= len(parts) - 1, list(result)


@pytest.mark.parametrize("decay", [0.8, 0.9])
def test_layer_learning_rates_of_electra_match_its_code(decay):
    _, network = network_of("electra@tiny", "network.layers=5", "network.embedding.width=8")
    expected = get_layer_lrs(1.0, decay, 5)
    result = layer_lr_scales(network, decay, recipe("electra").settings.finetuning.layer_decay_top)
    keys = {"embedding": "/embeddings/", "heads": "task_specific/"}
    body = {name: scale for name, scale in result.items() if not name.startswith("generator.")}
    assert {name.split(".")[0] for name in body} == {"embedding", "encoder", "heads"}
    for name, scale in body.items():
        part, *path = name.split(".")
        key = f"encoder/layer_{path[1]}/" if part == "encoder" else keys[part]
        assert scale == pytest.approx(expected[key]), name


def test_learning_rates_decay_layer_by_layer_from_the_full_rate_of_the_heads():
    _, network = network_of("bert@tiny")
    optimizer = build_optimizer(network, AdamWSettings(kind="adamw"), 0.1, layer_lr_scales(network, 0.5))
    set_learning_rate(optimizer, 0.08)
    names = {parameter: name for name, parameter in network.named_parameters()}
    result = {names[parameter]: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    assert len(result) == len(names)
    for name, rate in result.items():
        expected = {0: 0.005, 1: 0.01, 2: 0.02, 3: 0.04, 4: 0.08}[depths_of(network)[name]]
        assert rate == pytest.approx(expected), name
    decays = {names[p]: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert all((decay == 0) == (parameter.ndim < 2) for parameter, decay in
               ((parameter, decays[name]) for parameter, name in names.items()))


@pytest.mark.parametrize("frozen, lowest", [("0", 0), ("1", 1), ("3", 3), ("all", 4), ("4", 4)])
def test_frozen_layers_are_not_trained(frozen, lowest):
    resolved, network = network_of("bert@tiny", f"training.frozen={frozen}")
    layers = LayerFreezing(network, resolved.settings.training)
    layers.set_train_mode()
    assert trainable_layers(network) == set(range(lowest, 5))
    fixed = frozen in ("all", "4")  # a frozen encoder has no dropout
    assert network.encoder.training is not fixed and network.heads.training


def test_layers_are_unfrozen_from_the_top_down_to_the_frozen_ones():
    resolved, network = network_of("bert@tiny", "training.unfreeze=10", "training.frozen=1")
    layers = LayerFreezing(network, resolved.settings.training)
    lowest_layer = {}
    for step in range(60):
        layers.unfreeze_for_step(step)
        lowest_layer[step] = min(trainable_layers(network))
    assert [lowest_layer[step] for step in (0, 9, 10, 19, 20, 29, 30, 59)] == [4, 4, 3, 3, 2, 2, 1, 1]
    assert [layers.num_never_unfrozen(steps) for steps in (1, 10, 11, 30, 31, 500)] == [3, 3, 2, 1, 0, 0]


def test_fresh_reinitializes_the_top_layers_and_the_pooler():
    _, network = network_of("bert@tiny")
    assert reinitialized_names(network, 2) == {name for name in network.state_dict() if name.startswith(
        ("encoder.blocks.1.", "encoder.blocks.2.", "heads.pooler."))}
    assert reinitialized_names(network, 0) == set()


@pytest.mark.parametrize("name, changes, message", [
    ("bert@tiny", ["training.frozen=5"], "there are 3 layers and the embedding: at most 4, or all"),
    ("bert@tiny", ["training.frozen=some"], "must be a whole number, 0 or more, or all"),
    ("bert@tiny", ["training.frozen=-1"], "must be a whole number, 0 or more, or all"),
    ("bert@tiny", ["training.unfreeze=0"], "must be a whole number, 1 or more, or epoch"),
    ("bert@tiny", ["training.layer_decay=1.5"], "must be greater than 0 and at most 1"),
    ("bert@tiny", ["training.fresh=4"], "there are 3 layers"),
    ("bert@tiny", ["training.fresh=2", "training.frozen=3"], "would keep some of them as drawn"),
    ("bert@tiny", ["training.frozen=all", "training.layer_decay=0.9"], "has no effect"),
    ("bert@tiny", ["training.frozen=all", "training.unfreeze=3"], "has no effect"),
    ("albert@tiny", ["training.layer_decay=0.9"], "network.sharing = all makes them one"),
    ("albert@tiny", ["training.fresh=1"], "network.sharing = all makes them one"),
    ("universal-transformer@tiny", ["training.frozen=2"], "network.depth.kind = recurrent makes them one"),
])
def test_impossible_freezing_and_reinitialization_are_refused(name, changes, message):
    with pytest.raises(UserError) as refused:
        recipe(name, [*SMALL, *changes])
    assert message in str(refused.value) and len(refused.value.problems) == 1


def test_shared_layers_can_be_frozen_together():
    resolved, network = network_of("albert@tiny", "training.frozen=all")
    LayerFreezing(network, resolved.settings.training)
    assert trainable_layers(network) == {4}


@pytest.mark.parametrize("change, message", [("training.frozen=all", "training.frozen trains only the heads"),
                                             ("training.unfreeze=5", "training.unfreeze trains only the heads"),
                                             ("training.unfreeze=epoch", "give a number of steps")])
def test_a_network_with_a_tied_lm_head_has_no_heads_to_train_alone(change, message):
    resolved, network = network_of("gpt2@tiny", change)
    with pytest.raises(UserError, match=message):
        LayerFreezing(network, resolved.settings.training)
