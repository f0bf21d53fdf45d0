"""Family tables: conversion of names, tensors and values in both directions, and which networks match."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import stemma
from stemma.exchange import families
from stemma.exchange.bart import BART
from stemma.exchange.bert import BERT
from stemma.exchange.family import ConfigSetting
from stemma.exchange.gpt2 import GPT2
from stemma.exchange.t5 import T5
from stemma.exchange.tensor_map import TRANSPOSED, TensorKey, TensorTransform, from_hf, linear_keys, to_hf
from stemma.exchange.transformer_xl import TRANSFORMER_XL
from stemma.exchange.xlnet import XLNET
from stemma.recipe_loading import Recipe, recipe
from stemma.schema.overrides import flatten

FAMILY = pytest.mark.parametrize("family", families().values(), ids=lambda family: family.model_type)
# changes that make a family's base recipe match the family
CHANGES = {"distilbert": ["network.embedding.segments=0", "corpus.pair=start A separator B separator",
                          "remove=objective.next_sentence"]}


def family_recipe(family) -> Recipe:
    return recipe(family.recipe, CHANGES.get(family.model_type, []))


def small(family=BERT, changes: tuple[str, ...] = ()) -> stemma.Model:
    name = family.recipe.partition("@")[0]
    sizes = ["network.width=12", "network.feedforward=48", "network.layers=3"]
    if family.model_type in ("xlnet", "transfo-xl"):
        sizes.append("network.attention.head_width=6")
    if family.model_type.startswith("modernbert"):
        sizes.append("network.heads=2")
    return stemma.build(f"{name}@tiny", 40, [*sizes, *CHANGES.get(family.model_type, []), *changes])


def matches(model: stemma.Model, family=BERT, **values) -> bool:
    all_values = {**flatten(model.recipe.values), **values}
    visibility = "permuted" if "permuted" in family.visibility else "full" if "full" in family.visibility else "causal"
    return family.matches(all_values, {visibility}, model.network.head_specs, model.network.own_state_dict().keys())


def assert_same(tensors: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in tensors)


def test_several_hf_tensors_are_concatenated_and_split_again():
    key = TensorKey.of("joined", "first", "second", "third")
    hf_tensors = {name: torch.full((2, 3), float(index)) for index, name in enumerate(key.hf_names)}
    native = from_hf([key], hf_tensors, {})
    assert native["joined"][:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert_same(to_hf([key], native, 1), hf_tensors)


def test_several_native_tensors_are_one_hf_tensor():
    native = {f"part.{i}": torch.full((i + 1, 2), float(i)) for i in range(3)}
    (key,) = TensorKey.of("part.{i}", "whole").expand(native)
    hf_tensors = to_hf([key], native, 1)
    assert hf_tensors["whole"][:, 0].tolist() == [0, 1, 1, 2, 2, 2]
    back = from_hf([key], hf_tensors, native)
    assert_same(back, native)
    assert len({tensor.untyped_storage().data_ptr() for tensor in back.values()}) == 3  # or they cannot be saved


def test_a_transform_is_applied_in_both_directions():
    split_heads = TensorTransform(lambda tensor: tensor.flatten(1).T,
                                  lambda tensor, heads: tensor.T.unflatten(1, (heads, -1)))
    hf_tensors = {"q": torch.randn(5, 3, 2), "k": torch.randn(5, 3, 2), "map.weight": torch.randn(4, 7),
                  "map.bias": torch.randn(7)}
    keys = [TensorKey.of("input", "q", "k", transform=split_heads), *linear_keys("layer", "map", transform=TRANSPOSED)]
    native = from_hf(keys, hf_tensors, {})
    assert native["input"].shape == (12, 5) and native["input"][6 + 1 * 2 + 1, 4] == hf_tensors["k"][4, 1, 1]
    assert torch.equal(native["layer.weight"], hf_tensors["map.weight"].T) and native["layer.weight"].is_contiguous()
    assert_same(to_hf(keys, native, 3), hf_tensors)


def test_a_key_may_depend_on_another_tensor():
    key = TensorKey.of("a", "b", if_present="c", if_absent="d")
    assert [list(key.expand(names)) for names in ({"a", "c"}, {"a"}, {"a", "c", "d"})] == [[key], [], []]


def test_a_key_is_expanded_for_every_layer_of_the_network():
    weight, _ = linear_keys("blocks.{i}.map", "layer.{i}.dense")
    names = {f"blocks.{i}.map.weight" for i in range(3)}
    assert [key.names for key in weight.expand(names)] == [(f"blocks.{i}.map.weight",) for i in range(3)]
    assert [key.hf_names for key in weight.expand(names)][2] == ("layer.2.dense.weight",)
    assert list(weight.expand(set())) == [weight]


def test_a_setting_reads_every_value_and_writes_the_first():
    setting = ConfigSetting("a", "b", {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"})
    assert [setting.read({"b": hf_value}) for hf_value in setting.value_map] == ["gelu_tanh", "gelu_tanh", "relu"]
    assert setting.write({"a": "gelu_tanh"}) == "gelu_new"


@FAMILY
@pytest.mark.parametrize("bare", [True, False])
def test_the_table_names_every_tensor_once(family, bare):
    network = small(family).network
    keys = family.tensor_keys(network.heads, network.own_state_dict(), bare)
    names, hf_names = [name for key in keys for name in key.names], [name for key in keys for name in key.hf_names]
    assert sorted(names) == sorted(network.own_state_dict())
    assert len(set(hf_names)) == len(hf_names)
    assert not family.prefix or any(name.startswith(family.prefix) for name in hf_names) is not bare
    head_keys = [expanded for name in network.heads.keys() - family.body_heads for key in family.head_keys[name]
                 for expanded in key.expand(network.own_state_dict())]
    assert {name for key in head_keys for name in key.hf_names} <= set(hf_names)  # heads never get the body's prefix


@FAMILY
def test_converting_tensors_in_both_directions_changes_nothing(family):
    network = small(family).network
    state = network.own_state_dict()
    keys = family.tensor_keys(network.heads, state, bare=False)
    assert_same(from_hf(keys, to_hf(keys, state, network.settings.heads), state), dict(state))


@FAMILY
def test_a_network_with_more_or_fewer_tensors_does_not_match(family):
    model = small(family)
    assert matches(model, family)
    assert not matches(model, replace(family, body_keys=family.body_keys[:-1]))  # the network has one more
    missing = TensorKey.of("encoder.blocks.{i}.gate", "gate.{i}")
    assert not matches(model, replace(family, body_keys=(*family.body_keys, missing)))  # one fewer


@pytest.mark.parametrize(("family", "key"), [(family, key) for family in families().values()
                                             for key in (*family.required_recipe, *family.derived_values)])
def test_a_network_with_another_required_value_does_not_match(family, key):
    """Even if the tensors are the same."""
    model = small(family)
    assert matches(model, family)
    assert not matches(model, family, **{key: "something else"})


@FAMILY
@pytest.mark.parametrize("visibility", [{"backward"}, {"full", "causal", "permuted"}, {"full", "backward"}])
def test_a_network_with_other_attention_masks_does_not_match(family, visibility):
    """The attention mask is neither a tensor nor a value of the network; it comes from the objectives."""
    model = small(family)
    heads_and_tensors = (model.network.head_specs, model.network.own_state_dict().keys())
    values = flatten(model.recipe.values)
    assert not family.matches(values, visibility, *heads_and_tensors)
    assert not family.matches(values, {"causal"} if "full" in family.visibility else {"full"}, *heads_and_tensors)
    assert family.matches(values, set(), *heads_and_tensors) is ("full" in family.visibility)


def test_a_bert_may_be_trained_with_additional_attention_masks():
    """UniLM has BERT's network. A network that was never trained bidirectionally does not match."""
    model = small(BERT)
    heads_and_tensors = (model.network.head_specs, model.network.own_state_dict().keys())
    values = flatten(model.recipe.values)
    assert BERT.matches(values, {"full", "prefix", "causal", "later"}, *heads_and_tensors)
    for visibility in ({"prefix"}, {"causal", "later"}, {"full", "permuted"}):
        assert not BERT.matches(values, visibility, *heads_and_tensors)


@FAMILY
def test_a_network_with_an_unsupported_activation_does_not_match(family):
    model = small(family)
    settings = tuple(replace(setting, value_map={"tanh": "tanh"}) if setting.value_map else setting
                     for setting in family.settings)
    assert matches(model, replace(family, settings=settings)) is (settings == family.settings)


def test_of_two_recipe_values_with_one_hf_key_the_first_is_written():
    values = {**flatten(recipe("xlnet").values), "network.dropout": 0.3, "network.attention.dropout": 0.2}
    assert XLNET.to_hf_config(values)["dropout"] == 0.3
    values = XLNET.to_recipe_values({"dropout": 0.4})
    assert values["network.dropout"] == values["network.attention.dropout"] == 0.4


@FAMILY
def test_config_and_values_are_inverse(family):
    values = flatten(family_recipe(family).values)
    config = family.to_hf_config(values)
    assert family.problems(config) == []
    assert family.config_warnings(config) == []
    back = family.to_recipe_values(config)
    assert family.to_hf_config({**values, **back}) == config
    # ModernBERT was trained with a dropout after attention, which transformers has no key for
    unsupported = {"network.attention.output_dropout"} if family.model_type.startswith("modernbert") else set()
    assert all(values[key] == value for key, value in back.items() if key in values and key not in unsupported)


@FAMILY
def test_an_empty_config_gives_the_published_recipe(family):
    values = flatten(family_recipe(family).values)
    defaults = family.to_recipe_values({})
    # Published config.json files may have other dropouts, and some of transformers' defaults are not published values.
    excluded = {"network.dropout", "network.attention.dropout",
                *(setting.recipe_key for setting in family.settings if setting.default)}
    compared = [key for key in values if key in defaults and key not in excluded]
    assert {key: defaults[key] for key in compared} == {key: values[key] for key in compared}
    assert len(compared) > 5


def test_an_alias_is_used_if_the_main_key_is_absent():
    assert GPT2.to_recipe_values({"num_attention_heads": 3, "hidden_size": 12})["network.heads"] == 3
    assert GPT2.to_recipe_values({"num_attention_heads": 3, "n_head": 4})["network.heads"] == 4


def test_contradictory_duplicate_keys_are_reported():
    assert GPT2.config_warnings({"embd_pdrop": 0.1, "resid_pdrop": 0.1}) == []
    (warning,) = GPT2.config_warnings({"embd_pdrop": 0.0, "resid_pdrop": 0.3})
    assert "embd_pdrop = 0.0" in warning and "0.3" in warning


def test_a_head_without_tensors_is_detected_by_the_class():
    for classes, names, expected in ((["GPT2LMHeadModel"], {"wte.weight"}, ["vocabulary"]), (["GPT2Model"], set(), []),
                                     (None, set(), ["vocabulary"]), (["GPT2ForSequenceClassification"], set(), []),
                                     (["GPT2DoubleHeadsModel"], {"lm_head.weight"}, ["vocabulary"])):
        assert GPT2.detect_heads({"architectures": classes}, names) == expected


def test_an_implicit_head_is_detected_for_every_class():
    for architectures in (["T5Model"], ["T5ForConditionalGeneration"], ["T5WithLMHeadModel"], None):
        assert T5.detect_heads({"architectures": architectures}, {"shared.weight"}) == ["vocabulary"]


def test_tied_tensors_of_the_body_have_the_prefix():
    copies = {f"{part}.embed_tokens.weight" for part in ("encoder", "decoder")}
    assert dict(BART.tied_names({"shared.weight"}, bare=True)).keys() == {"lm_head.weight", *copies}
    assert dict(BART.tied_names({"model.shared.weight"}, bare=False)) == dict.fromkeys(
        ["lm_head.weight", *(f"model.{name}" for name in copies)], "model.shared.weight")


def test_tied_names_are_those_of_expected_tensors():
    expected = {"transformer.word_emb.emb_projs.0", "transformer.word_emb.emb_projs.1", "crit.out_projs.0"}
    assert list(TRANSFORMER_XL.tied_names(expected, bare=False)) == [
        ("crit.out_projs.1", "transformer.word_emb.emb_projs.1")]


@FAMILY
def test_the_declarations_of_a_family_are_consistent(family):
    assert family.head_keys.keys() == family.head_specs.keys()
    assert family.body_heads <= family.head_keys.keys()
    assert set().union(*family.architectures) == set(family.head_keys)
    tables = (family.body_keys, *family.head_keys.values())
    hf_names = {name for keys in tables for key in keys for name in key.hf_names}
    assert set(family.tied_head_tensors.values()) <= hf_names and not hf_names & family.tied_head_tensors.keys()
    hf_keys = {setting.hf_key for setting in family.settings}
    assert {*family.aliases.values(), *family.duplicate_settings.values()} <= hf_keys
    assert not hf_keys & {*family.aliases, *family.duplicate_settings, *family.required_config}
    values = flatten(family_recipe(family).values)
    assert all(values.get(key) == value for key, value in family.required_recipe.items())
    assert all(values.get(key) in (None, value(values)) for key, value in family.derived_values.items())
