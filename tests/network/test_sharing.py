"""Layers that are one layer: the same answers as layers with equal weights, and every weight there once."""

from __future__ import annotations

import copy

import pytest
import torch
from closeness import assert_close

import stemma
from stemma.errors import UserError
from stemma.network.cache import KVCache
from stemma.network.inputs_outputs import Stream
from stemma.training.optimizers import build_optimizer
from stemma.visibility import Causal

SMALL = ["network.layers=3", "network.width=20", "network.heads=4", "network.feedforward=28",
         "network.position.maximum=16", "corpus.sequence_length=16"]
OWN = {"none": {"attention", "attention_norm", "feedforward", "feedforward_norm"},
       "attention": {"feedforward", "feedforward_norm"}, "feedforward": {"attention", "attention_norm"}, "all": set()}
IDS = torch.arange(1, 15).view(2, 7)


def built(sharing: str, name: str = "bert", changes: tuple[str, ...] = ()) -> stemma.Model:
    torch.manual_seed(0)
    return stemma.build(name, 40, [*SMALL, f"network.sharing={sharing}", *changes])


def unshared(model: stemma.Model, name: str = "bert", changes: tuple[str, ...] = ()) -> stemma.Model:
    """A network of layers with weights of their own, which are copies of what this one shares."""
    twin, weights = built("none", name, changes), model.network.state_dict()
    filled = {}
    for key in twin.network.state_dict():
        part, block, rest = key.partition(".blocks.")
        first = f"{part}{block}0.{rest.partition('.')[2]}" if block else key
        filled[key] = weights[key if key in weights else first]
    twin.network.load_state_dict(filled)
    return twin


@pytest.mark.parametrize("sharing", OWN)
def test_later_layers_own_what_is_not_shared(sharing):
    network = built(sharing).network
    assert len(network.encoder.blocks) == 3
    for number in (1, 2):
        start = f"encoder.blocks.{number}."
        owned = {name.removeprefix(start).split(".")[0] for name in network.state_dict() if name.startswith(start)}
        assert owned == OWN[sharing]
    first, second, _ = network.encoder.blocks
    assert (first.attention is second.attention) == (sharing in ("attention", "all"))
    assert (first.feedforward_norm is second.feedforward_norm) == (sharing in ("feedforward", "all"))


@pytest.mark.parametrize("sharing", ["attention", "feedforward", "all"])
def test_shared_layers_equal_equal_layers(sharing):
    model = built(sharing)
    torch.testing.assert_close(model.logits(IDS), unshared(model).logits(IDS), atol=1e-6, rtol=0)
    assert not torch.allclose(model.logits(IDS), built("none").logits(IDS), atol=1e-3)


@pytest.mark.parametrize("sharing", ["attention", "feedforward", "all"])
def test_the_gradient_is_the_sum_over_the_layers(sharing):
    model = built(sharing)
    twin = unshared(model)
    direction = torch.randn(*IDS.shape, 20)
    for one in (model, twin):
        (one.network({"encoder": Stream(IDS)})["encoder"] * direction).sum().backward()
    theirs = {name: weight.grad for name, weight in twin.network.named_parameters()}
    start = "encoder.blocks.0."
    for name, weight in model.network.named_parameters():
        if name.startswith(start):
            shared = name.removeprefix(start).split(".")[0] not in OWN[sharing]
            layers = range(3) if shared else [0]
            expected = sum(theirs[name.replace(start, f"encoder.blocks.{layer}.")] for layer in layers)
            torch.testing.assert_close(weight.grad, expected, atol=1e-4, rtol=1e-4)
    assert model.network.encoder.blocks[0].attention.input.weight.grad.abs().max() > 1e-2


def test_counts_of_the_paper():
    """arXiv:1909.11942, table 4: all, attention, feed-forward or nothing shared are 12, 64, 38 and 89 million."""
    with torch.device("meta"):
        counts = [stemma.build("albert", None, [f"network.sharing={mode}"]).parameter_count(heads=False)
                  for mode in ("all", "attention", "feedforward", "none")]
    assert [round(count / 1e6) for count in counts] == [12, 64, 38, 90]  # the paper rounds the last one down


@pytest.mark.parametrize("sharing", ["attention", "all"])
def test_each_weight_is_trained_once_and_copies_stay_shared(sharing):
    network = built(sharing).network
    settings = stemma.recipe("albert").settings.training.optimizer
    trained = [weight for group in build_optimizer(network, settings, 0.1).param_groups for weight in group["params"]]
    assert len(trained) == len({id(weight) for weight in trained}) == len(network.state_dict())
    twin = copy.deepcopy(network)
    first, second, _ = twin.encoder.blocks
    assert first.attention is second.attention and first.attention is not network.encoder.blocks[0].attention
    twin.double()
    assert second.attention.input.weight.dtype == torch.float64


@pytest.mark.parametrize("sharing", ["attention", "feedforward", "all"])
def test_saved_and_loaded_it_is_the_same(tmp_path, sharing):
    model = built(sharing)
    stemma.save(model, tmp_path / "m")
    again = stemma.load(tmp_path / "m")
    assert_close(again.logits(IDS), model.logits(IDS))
    first, second, _ = again.network.encoder.blocks
    assert (first.attention is second.attention) == (sharing != "feedforward")
    assert again.parameter_count() == model.parameter_count()


@torch.no_grad()
@pytest.mark.parametrize("sharing", ["attention", "all"])
def test_each_layer_has_a_cache_of_its_own(sharing):
    """One set of weights reads three different texts: what layer after layer made of the input."""
    network = built(sharing, "gpt").network.eval()
    whole = network({"encoder": Stream(IDS, Causal())})["encoder"]
    cache, parts = KVCache(), []
    for start, stop in ((0, 3), (3, 4), (4, 7)):
        parts.append(network({"encoder": Stream(IDS[:, start:stop], Causal())}, cache)["encoder"])
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("sharing", ["attention", "feedforward", "all"])
def test_a_decoder_shares_too(sharing):
    changes = ("network.decoder.layers=2",)
    model = built(sharing, "bart", changes)
    first, second = model.network.decoder.blocks
    assert (first.cross is second.cross) == (sharing != "feedforward")
    assert first.cross is not model.network.encoder.blocks[0].attention
    expected = unshared(model, "bart", changes).logits(IDS, decoder_input_ids=IDS)
    torch.testing.assert_close(model.logits(IDS, decoder_input_ids=IDS), expected, atol=1e-6, rtol=0)


def test_recurrent_depth_has_nothing_left_to_share():
    with pytest.raises(UserError) as told:
        stemma.recipe("universal-transformer@tiny", ["network.sharing=all"])
    assert told.value.problems == [("network.sharing = all", "recurrent depth has one block for all its steps already")]
