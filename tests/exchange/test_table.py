"""The table alone: names in both directions, parts joined and split, and what it accepts as the family."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import stemma
from stemma.exchange import FAMILIES
from stemma.exchange.bert import BERT
from stemma.exchange.table import Key, Setting, linear, to_ours, to_theirs
from stemma.lineage import recipe
from stemma.schema.layers import flatten


def small(changes: tuple[str, ...] = ()) -> stemma.Model:
    return stemma.build("bert@tiny", 40, ["network.width=12", "network.feedforward=9", "network.layers=3", *changes])


def fits(model: stemma.Model, family=BERT) -> bool:
    return family.fits(flatten(model.recipe.values), model.network.specs, model.network.state_dict())


def test_parts_are_joined_in_order_and_split_again():
    key = Key.of("joined", "first", "second", "third")
    theirs = {name: torch.full((2, 3), float(number)) for number, name in enumerate(key.theirs)}
    ours = to_ours([key], theirs)
    assert ours["joined"][:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert {name: tensor.tolist() for name, tensor in to_theirs([key], ours).items()} == \
           {name: tensor.tolist() for name, tensor in theirs.items()}


def test_layers_are_those_the_network_has():
    weight, _ = linear("blocks.{i}.map", "layer.{i}.dense")
    names = {f"blocks.{i}.map.weight" for i in range(3)}
    assert [key.ours for key in weight.expand(names)] == [f"blocks.{i}.map.weight" for i in range(3)]
    assert [key.theirs for key in weight.expand(names)][2] == ("layer.2.dense.weight",)
    assert list(weight.expand(set())) == [weight]


def test_a_setting_writes_the_first_spelling_and_reads_all():
    setting = Setting("a", "b", {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"})
    assert [setting.read(theirs) for theirs in setting.names] == ["gelu_tanh", "gelu_tanh", "relu"]
    assert setting.write("gelu_tanh") == "gelu_new"


@pytest.mark.parametrize("bare", [True, False])
def test_the_table_names_every_tensor_once(bare):
    network = small().network
    keys = BERT.keys(network.heads, network.state_dict(), bare)
    ours, theirs = [key.ours for key in keys], [name for key in keys for name in key.theirs]
    assert sorted(ours) == sorted(network.state_dict())
    assert len(set(theirs)) == len(theirs)
    assert ("bert.pooler.dense.bias" in theirs) is not bare
    assert "cls.predictions.bias" in theirs  # a head stands outside the body, whatever the body is called


def test_there_and_back_is_the_same():
    network = small().network
    keys = BERT.keys(network.heads, network.state_dict(), bare=False)
    back = to_ours(keys, to_theirs(keys, network.state_dict()))
    assert all(torch.equal(back[name], tensor) for name, tensor in network.state_dict().items())


def test_a_tensor_that_the_table_does_not_name_is_another_family():
    model = small()
    assert fits(model)
    assert not fits(model, replace(BERT, body=BERT.body[:-1]))  # we have one more
    assert not fits(model, replace(BERT, body=(*BERT.body, Key.of("encoder.blocks.{i}.gate", "gate.{i}"))))  # one less


@pytest.mark.parametrize("key", list(BERT.fixed))
def test_every_fixed_value_counts(key):
    """A value that is fixed and differs makes another network, even where the tensors are the same."""
    model = small()
    values = {**flatten(model.recipe.values), key: "something else"}
    assert not BERT.fits(values, model.network.specs, model.network.state_dict())


def test_an_activation_without_a_name_there_is_another_family():
    model = small()
    without = tuple(replace(one, names={"relu": "relu"}) if one.names else one for one in BERT.settings)
    assert not fits(model, replace(BERT, settings=without))


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.model_type)
def test_config_and_values_are_inverse(family):
    values = flatten(recipe(family.recipe).values)
    config = family.config(values)
    assert family.problems(config) == []
    assert family.values(config) == {setting.ours: values[setting.ours] for setting in family.settings}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.model_type)
def test_the_declarations_agree_with_each_other(family):
    assert family.heads.keys() == family.specs.keys()
    assert family.inside <= family.heads.keys()
    assert set().union(*family.classes) == set(family.heads)
    named = {name for table in (family.body, *family.heads.values()) for key in table for name in key.theirs}
    assert set(family.copies.values()) <= named and not named & family.copies.keys()
    own = flatten(recipe(family.recipe).values)
    assert all(setting.ours in own for setting in family.settings)
    assert all(own.get(key) == value for key, value in family.fixed.items())
