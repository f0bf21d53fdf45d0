"""XLNet agrees with `transformers` to 1e-4, in both directions: segments, padding, memory, and both streams."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from closeness import assert_close
from parity import reference
from parity.reference import (
    SEEDS,
    assert_agrees_both_ways,
    assert_loads_into,
    assert_same_outputs,
    configure,
    load_both_ways,
)

import stemma
from stemma.errors import UserError
from stemma.network.inputs_outputs import QUERY, Stream
from stemma.visibility import Bidirectional, Permutation

KINDS = ["XLNetModel", "XLNetLMHeadModel"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_xlnet_agrees_with_transformers(tmp_path, seed, kind):
    assert_agrees_both_ways(reference.random_reference("xlnet", seed, kind), tmp_path, seed)


SETTINGS = {"clamped": {"clamp_len": 4}, "relu": {"ff_activation": "relu"}, "coarse norm": {"layer_norm_eps": 0.01},
            "short memory": {"mem_len": 3}, "unlimited memory": {"mem_len": None}}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_unusual_settings_agree(tmp_path, settings):
    hf_model = reference.random_reference("xlnet", 6, "XLNetLMHeadModel", **settings)
    model, back = load_both_ways(hf_model, tmp_path)
    assert_same_outputs(model, hf_model)
    assert_same_outputs(model, back)


@torch.no_grad()
@pytest.mark.parametrize("clamp", [-1, 3], ids=["plain", "clamped"])
@pytest.mark.parametrize("segmented", [False, True], ids=["without-segments", "segments"])
def test_memory_agrees_over_several_segments(tmp_path, segmented, clamp):
    """transformers caches layer inputs, we cache keys and values. Segments are longer and shorter than the memory."""
    hf_model = reference.random_reference("xlnet", 3, "XLNetLMHeadModel", mem_len=6, clamp_len=clamp)
    hf_model.save_pretrained(tmp_path)
    model, generator = stemma.load(tmp_path), torch.Generator().manual_seed(1)
    assert model.recipe.settings.network.memory.eval_length == 6
    cache, memory = model.network.new_cache(), None
    for length in (4, 9, 1, 3, 2):
        ids = torch.randint(hf_model.config.vocab_size, (3, length), generator=generator)
        types = torch.randint(2, (3, length), generator=generator) if segmented else None
        expected = hf_model(ids, mems=memory, token_type_ids=types, use_mems=True)
        memory = expected.mems
        hidden = model.network({"encoder": Stream(ids, Bidirectional(), segment_ids=types)}, cache)["encoder"]
        torch.testing.assert_close(model.lm_head()(hidden), expected.logits, atol=1e-4, rtol=0)
    assert cache.length == 6
    fresh = model.network({"encoder": Stream(ids, Bidirectional(), segment_ids=types)})["encoder"]
    assert (fresh - hidden).abs().max() > 1e-2, "the memory made no difference"


@torch.no_grad()
@pytest.mark.parametrize("segmented", [False, True], ids=["without-segments", "segments"])
def test_both_streams_agree(tmp_path, segmented):
    """Random factorisation orders with three targets, and memory over three segments."""
    hf_model = reference.random_reference("xlnet", 2, "XLNetLMHeadModel", mem_len=5)
    hf_model.save_pretrained(tmp_path)
    model, generator = stemma.load(tmp_path), torch.Generator().manual_seed(1)
    cache, memory = model.network.new_cache(), None
    for length in (8, 5, 7):
        ids = torch.randint(hf_model.config.vocab_size, (3, length), generator=generator)
        types = torch.randint(3, (3, length), generator=generator) if segmented else None
        order = torch.stack([torch.randperm(length, generator=generator) for _ in range(3)])
        targets = order.argsort(1)[:, -3:]  # the last of each order
        perm_mask = (order[:, None, :] >= order[:, :, None]).float()  # 1: not attended: itself, and later ones
        mapping = torch.nn.functional.one_hot(targets, length).float()
        expected = hf_model(ids, mems=memory, token_type_ids=types, perm_mask=perm_mask, target_mapping=mapping,
                            use_mems=True, output_hidden_states=True)
        memory = expected.mems
        stream = Stream(ids, Permutation(order), segment_ids=types, query_positions=targets)
        hidden = model.network({"encoder": stream}, cache, keep_hidden_states=True)
        torch.testing.assert_close(model.lm_head()(hidden[QUERY]), expected.logits, atol=1e-4, rtol=0)
        torch.testing.assert_close(hidden["encoder"], expected.hidden_states[-2], atol=1e-4, rtol=0)  # text, query last


@pytest.mark.parametrize(("seed", "activation", "hf_activation"), [(0, "gelu_tanh", "gelu_new"), (1, "gelu", "gelu"),
                                                               (0, "relu", "relu")])
def test_a_saved_model_agrees_in_transformers(tmp_path, seed, activation, hf_activation):
    """The recipe's GELU is the authors' tanh approximation, which transformers calls gelu_new."""
    assert stemma.recipe("xlnet").settings.network.activation == "gelu_tanh"
    sizes = reference.random_sizes(seed + 10)
    width, heads = sizes["even_width"], sizes["heads"]
    changes = {"layers": sizes["layers"], "width": width, "heads": heads, "feedforward": sizes["inner"],
               "attention.head_width": width // heads, "norm.epsilon": 1e-5, "memory.length": 7,
               "activation": activation}
    model = stemma.build("xlnet", sizes["vocabulary"], [f"network.{key}={value}" for key, value in changes.items()])
    reference.perturb(model.network, seed)
    stemma.save(model, tmp_path / "stemma")
    hf_model = assert_loads_into("XLNetLMHeadModel", tmp_path / "stemma")
    assert type(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "stemma")) is type(hf_model)
    config = hf_model.config
    assert (config.mem_len, config.layer_norm_eps, config.ff_activation) == (7, 1e-5, hf_activation)
    assert_same_outputs(model, hf_model, seed=seed)
    assert model.parameter_count() == hf_model.num_parameters()
    assert_same_outputs(stemma.load(tmp_path / "stemma"), hf_model, seed=seed)


def test_the_tiny_size_loads_in_transformers(tmp_path):
    stemma.save(stemma.build("xlnet@tiny", 40), tmp_path / "m")
    assert_loads_into("XLNetLMHeadModel", tmp_path / "m")


def test_config_defaults_are_those_of_transformers(tmp_path):
    """These are the sizes of the large model, and not of the recipe's first size."""
    hf_model = reference.random_reference("xlnet", 1, "XLNetModel", d_model=64, n_head=16, d_inner=32, n_layer=1)
    hf_model.save_pretrained(tmp_path)
    configure(tmp_path, n_head=..., d_head=..., mem_len=..., clamp_len=..., ff_activation=..., dropout=0.3)
    model = stemma.load(tmp_path)
    network = model.recipe.settings.network
    assert network.activation == "gelu"  # exact, as in transformers; the recipe has the tanh approximation
    assert network.dropout == network.inner_dropout == network.output_dropout == network.attention.dropout == 0.3
    assert (model.recipe.settings.network.heads, model.recipe.settings.network.memory.eval_length) == (16, 512)
    assert_same_outputs(model, hf_model)


def test_all_differences_from_xlnet_are_reported_at_once(tmp_path):
    reference.random_reference("xlnet", 1, "XLNetModel").save_pretrained(tmp_path)
    configure(tmp_path, attn_type="uni", bi_data=True, untie_r=False, d_head=9)
    with pytest.raises(UserError, match="family xlnet, of a kind that is not supported") as error:
        stemma.load(tmp_path)
    assert [where for where, _ in error.value.problems] == ["d_head = 9", "attn_type = uni", "bi_data = True",
                                                            "untie_r = False"]


@pytest.mark.parametrize(("setting", "value", "message"), [
    ("d_model", "36", "network.width = 36"), ("n_head", 0, "network.heads = 0"), ("clamp_len", "far", "clamp = far"),
    ("mem_len", -3, "network.memory.eval_length = -3")])
def test_impossible_values_are_reported_with_their_key(tmp_path, setting, value, message):
    reference.random_reference("xlnet", 1, "XLNetModel").save_pretrained(tmp_path)
    configure(tmp_path, **{setting: value, "d_head": ...})
    with pytest.raises(UserError, match=message):
        stemma.load(tmp_path)


UNSEGMENTED = ["network.attention.segments=false", "corpus.single=A separator", "corpus.pair=A separator B separator"]


@pytest.mark.parametrize("changes", [["network.memory.start=zeros"], ["network.memory.same_length=true"],
                                     ["network.attention.head_width=32"], ["network.embedding.scale=true"],
                                     UNSEGMENTED], ids=lambda changes: changes[0])
def test_a_network_that_is_not_xlnet_is_saved_as_type_stemma(tmp_path, changes):
    model = stemma.build("xlnet@tiny", 40, changes)
    stemma.save(model, tmp_path / "m")
    assert json.loads((tmp_path / "m/config.json").read_text())["model_type"] == "stemma"
    ids = torch.arange(12).view(2, 6)
    assert_close(stemma.load(tmp_path / "m").logits(ids), model.logits(ids))
