"""The table alone: names in both directions, parts joined and split, and what it accepts as the family."""

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
# what makes a family's recipe one of the family, where it is another's
CHANGES = {"distilbert": ["network.embedding.segments=0", "corpus.pair=start A separator B separator",
                          "remove=objective.next_sentence"]}


def own(family) -> Recipe:
    return recipe(family.recipe, CHANGES.get(family.model_type, []))


def small(family=BERT, changes: tuple[str, ...] = ()) -> stemma.Model:
    name = family.recipe.partition("@")[0]
    sizes = ["network.width=12", "network.feedforward=48", "network.layers=3"]
    if family.model_type in ("xlnet", "transfo-xl"):
        sizes.append("network.attention.head_width=6")
    if family.model_type.startswith("modernbert"):
        sizes.append("network.heads=2")
    return stemma.build(f"{name}@tiny", 40, [*sizes, *CHANGES.get(family.model_type, []), *changes])


def fits(model: stemma.Model, family=BERT, **values) -> bool:
    known = {**flatten(model.recipe.values), **values}
    sees = "permuted" if "permuted" in family.visibility else "full" if "full" in family.visibility else "causal"
    return family.matches(known, {sees}, model.network.head_specs, model.network.own_state_dict().keys())


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_parts_are_joined_in_order_and_split_again():
    key = TensorKey.of("joined", "first", "second", "third")
    theirs = {name: torch.full((2, 3), float(number)) for number, name in enumerate(key.hf_names)}
    ours = from_hf([key], theirs, {})
    assert ours["joined"][:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert_same(to_hf([key], ours, 1), theirs)


def test_several_of_ours_are_one_of_theirs():
    ours = {f"part.{i}": torch.full((i + 1, 2), float(i)) for i in range(3)}
    (key,) = TensorKey.of("part.{i}", "whole").expand(ours)
    theirs = to_hf([key], ours, 1)
    assert theirs["whole"][:, 0].tolist() == [0, 1, 1, 2, 2, 2]
    back = from_hf([key], theirs, ours)
    assert_same(back, ours)
    assert len({tensor.untyped_storage().data_ptr() for tensor in back.values()}) == 3  # or they cannot be saved


def test_a_form_is_read_in_both_directions():
    by_head = TensorTransform(lambda theirs: theirs.flatten(1).T, lambda ours, heads: ours.T.unflatten(1, (heads, -1)))
    theirs = {"q": torch.randn(5, 3, 2), "k": torch.randn(5, 3, 2), "map.weight": torch.randn(4, 7),
              "map.bias": torch.randn(7)}
    keys = [TensorKey.of("input", "q", "k", transform=by_head), *linear_keys("ours", "map", transform=TRANSPOSED)]
    ours = from_hf(keys, theirs, {})
    assert ours["input"].shape == (12, 5) and ours["input"][6 + 1 * 2 + 1, 4] == theirs["k"][4, 1, 1]
    assert torch.equal(ours["ours.weight"], theirs["map.weight"].T) and ours["ours.weight"].is_contiguous()
    assert_same(to_hf(keys, ours, 3), theirs)


def test_a_key_may_depend_on_another_tensor():
    key = TensorKey.of("a", "b", if_present="c", if_absent="d")
    assert [list(key.expand(names)) for names in ({"a", "c"}, {"a"}, {"a", "c", "d"})] == [[key], [], []]


def test_layers_are_those_the_network_has():
    weight, _ = linear_keys("blocks.{i}.map", "layer.{i}.dense")
    names = {f"blocks.{i}.map.weight" for i in range(3)}
    assert [key.names for key in weight.expand(names)] == [(f"blocks.{i}.map.weight",) for i in range(3)]
    assert [key.hf_names for key in weight.expand(names)][2] == ("layer.2.dense.weight",)
    assert list(weight.expand(set())) == [weight]


def test_a_setting_writes_the_first_spelling_and_reads_all():
    setting = ConfigSetting("a", "b", {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"})
    assert [setting.read({"b": theirs}) for theirs in setting.value_map] == ["gelu_tanh", "gelu_tanh", "relu"]
    assert setting.write({"a": "gelu_tanh"}) == "gelu_new"


@FAMILY
@pytest.mark.parametrize("bare", [True, False])
def test_the_table_names_every_tensor_once(family, bare):
    network = small(family).network
    keys = family.tensor_keys(network.heads, network.own_state_dict(), bare)
    ours, theirs = [name for key in keys for name in key.names], [name for key in keys for name in key.hf_names]
    assert sorted(ours) == sorted(network.own_state_dict())
    assert len(set(theirs)) == len(theirs)
    assert not family.prefix or any(name.startswith(family.prefix) for name in theirs) is not bare
    outside = [part for name, table in family.head_keys.items() if name in network.heads.keys() - family.body_heads
               for key in table for one in key.expand(network.own_state_dict()) for part in one.hf_names]
    assert set(outside) <= set(theirs)  # a head stands outside the body, whatever the body is called


@FAMILY
def test_there_and_back_is_the_same(family):
    network = small(family).network
    state = network.own_state_dict()
    keys = family.tensor_keys(network.heads, state, bare=False)
    assert_same(from_hf(keys, to_hf(keys, state, network.settings.heads), state), dict(state))


@FAMILY
def test_a_tensor_that_the_table_does_not_name_is_another_family(family):
    model = small(family)
    assert fits(model, family)
    assert not fits(model, replace(family, body_keys=family.body_keys[:-1]))  # we have one more
    more = TensorKey.of("encoder.blocks.{i}.gate", "gate.{i}")
    assert not fits(model, replace(family, body_keys=(*family.body_keys, more)))  # one less


@pytest.mark.parametrize(("family", "key"), [(family, key) for family in families().values()
                                             for key in (*family.required_recipe, *family.derived_values)])
def test_every_fixed_value_counts(family, key):
    """A value that is fixed and differs makes another network, even where the tensors are the same."""
    model = small(family)
    assert fits(model, family)
    assert not fits(model, family, **{key: "something else"})


@FAMILY
@pytest.mark.parametrize("sees", [{"backward"}, {"full", "causal", "permuted"}, {"full", "backward"}])
def test_a_network_that_reads_otherwise_is_another_family(family, sees):
    """Who sees whom is no tensor and no value of the network; the objectives tell."""
    model = small(family)
    facts = (model.network.head_specs, model.network.own_state_dict().keys())
    values = flatten(model.recipe.values)
    assert not family.matches(values, sees, *facts)
    assert not family.matches(values, {"causal"} if "full" in family.visibility else {"full"}, *facts)
    assert family.matches(values, set(), *facts) is ("full" in family.visibility)


def test_a_bert_may_have_learned_other_ways_to_read_besides():
    """UniLM, whose network is BERT's; but one that never saw both sides is not to be read as if it had."""
    model = small(BERT)
    facts = (model.network.head_specs, model.network.own_state_dict().keys())
    values = flatten(model.recipe.values)
    assert BERT.matches(values, {"full", "prefix", "causal", "later"}, *facts)
    assert not any(BERT.matches(values, sees, *facts) for sees in ({"prefix"}, {"causal", "later"},
                                                                   {"full", "permuted"}))


@FAMILY
def test_an_activation_without_a_name_there_is_another_family(family):
    model = small(family)
    without = tuple(replace(one, value_map={"tanh": "tanh"}) if one.value_map else one for one in family.settings)
    assert fits(model, replace(family, settings=without)) is (without == family.settings)


def test_of_two_values_under_one_name_the_first_is_told():
    values = {**flatten(recipe("xlnet").values), "network.dropout": 0.3, "network.attention.dropout": 0.2}
    assert XLNET.to_hf_config(values)["dropout"] == 0.3
    assert {XLNET.to_recipe_values({"dropout": 0.4})[f"network.{key}"] for key in ("dropout",
                                                                                   "attention.dropout")} == {0.4}


@FAMILY
def test_config_and_values_are_inverse(family):
    values = flatten(own(family).values)
    config = family.to_hf_config(values)
    assert family.problems(config) == []
    assert family.config_warnings(config) == []
    back = family.to_recipe_values(config)
    assert family.to_hf_config({**values, **back}) == config
    # ModernBERT was trained with a dropout that has no name over there
    unnamed = {"network.attention.output_dropout"} if family.model_type.startswith("modernbert") else set()
    assert all(values[key] == value for key, value in back.items() if key in values and key not in unnamed)


@FAMILY
def test_a_silent_config_is_the_family_as_published(family):
    values = flatten(own(family).values)
    told = family.to_recipe_values({})
    # the published files may say another rate; and of some values over there another is usual than was published
    free = {"network.dropout", "network.attention.dropout", *(one.recipe_key for one in family.settings if one.default)}
    compared = [key for key in values if key in told and key not in free]
    assert {key: told[key] for key in compared} == {key: values[key] for key in compared}
    assert len(compared) > 5


def test_an_alias_counts_unless_the_name_itself_is_there():
    assert GPT2.to_recipe_values({"num_attention_heads": 3, "hidden_size": 12})["network.heads"] == 3
    assert GPT2.to_recipe_values({"num_attention_heads": 3, "n_head": 4})["network.heads"] == 4


def test_what_is_said_twice_and_differently_is_told():
    assert GPT2.config_warnings({"embd_pdrop": 0.1, "resid_pdrop": 0.1}) == []
    (told,) = GPT2.config_warnings({"embd_pdrop": 0.0, "resid_pdrop": 0.3})
    assert "embd_pdrop = 0.0" in told and "0.3" in told


def test_a_head_without_tensors_is_told_by_the_class():
    for classes, names, expected in ((["GPT2LMHeadModel"], {"wte.weight"}, ["vocabulary"]), (["GPT2Model"], set(), []),
                                     (None, set(), ["vocabulary"]), (["GPT2ForSequenceClassification"], set(), []),
                                     (["GPT2DoubleHeadsModel"], {"lm_head.weight"}, ["vocabulary"])):
        assert GPT2.detect_heads({"architectures": classes}, names) == expected


def test_a_head_that_is_always_there_needs_no_class():
    for architectures in (["T5Model"], ["T5ForConditionalGeneration"], ["T5WithLMHeadModel"], None):
        assert T5.detect_heads({"architectures": architectures}, {"shared.weight"}) == ["vocabulary"]


def test_what_the_body_shares_stands_in_the_body():
    again = {f"{part}.embed_tokens.weight" for part in ("encoder", "decoder")}
    assert dict(BART.tied_names({"shared.weight"}, bare=True)).keys() == {"lm_head.weight", *again}
    assert dict(BART.tied_names({"model.shared.weight"}, bare=False)) == dict.fromkeys(
        ["lm_head.weight", *(f"model.{name}" for name in again)], "model.shared.weight")


def test_copies_are_those_of_tensors_that_are_there():
    expected = {"transformer.word_emb.emb_projs.0", "transformer.word_emb.emb_projs.1", "crit.out_projs.0"}
    assert list(TRANSFORMER_XL.tied_names(expected, bare=False)) == [
        ("crit.out_projs.1", "transformer.word_emb.emb_projs.1")]


@FAMILY
def test_the_declarations_agree_with_each_other(family):
    assert family.head_keys.keys() == family.head_specs.keys()
    assert family.body_heads <= family.head_keys.keys()
    assert set().union(*family.architectures) == set(family.head_keys)
    named = {name for table in (family.body_keys, *family.head_keys.values()) for key in table for name in key.hf_names}
    assert set(family.tied_head_tensors.values()) <= named and not named & family.tied_head_tensors.keys()
    stated = {setting.hf_key for setting in family.settings}
    assert {*family.aliases.values(), *family.duplicate_settings.values()} <= stated
    assert not stated & {*family.aliases, *family.duplicate_settings, *family.required_config}
    values = flatten(own(family).values)
    assert all(values.get(key) == value for key, value in family.required_recipe.items())
    assert all(values.get(key) in (None, value(values)) for key, value in family.derived_values.items())
