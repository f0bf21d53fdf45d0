"""Cross-layer parameter sharing: the outputs of layers with equal parameters, each stored and trained once."""

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
NOT_SHARED = {"none": {"attention", "attention_norm", "feedforward", "feedforward_norm"},
              "attention": {"feedforward", "feedforward_norm"}, "feedforward": {"attention", "attention_norm"},
              "all": set()}
IDS = torch.arange(1, 15).view(2, 7)


def build(sharing: str, name: str = "bert", changes: tuple[str, ...] = ()) -> stemma.Model:
    torch.manual_seed(0)
    return stemma.build(name, 40, [*SMALL, f"network.sharing={sharing}", *changes])


def unshared(model: stemma.Model, name: str = "bert", changes: tuple[str, ...] = ()) -> stemma.Model:
    """A network without sharing, whose layers have copies of the shared parameters."""
    twin, weights = build("none", name, changes), model.network.state_dict()
    state = {}
    for key in twin.network.state_dict():
        part, block, rest = key.partition(".blocks.")
        first = f"{part}{block}0.{rest.partition('.')[2]}" if block else key
        state[key] = weights[key if key in weights else first]
    twin.network.load_state_dict(state)
    return twin


@pytest.mark.parametrize("sharing", NOT_SHARED)
def test_later_layers_store_only_unshared_parameters(sharing):
    network = build(sharing).network
    assert len(network.encoder.blocks) == 3
    for layer in (1, 2):
        start = f"encoder.blocks.{layer}."
        stored = {name.removeprefix(start).split(".")[0] for name in network.state_dict() if name.startswith(start)}
        assert stored == NOT_SHARED[sharing]
    first, second, _ = network.encoder.blocks
    assert (first.attention is second.attention) == (sharing in ("attention", "all"))
    assert (first.feedforward_norm is second.feedforward_norm) == (sharing in ("feedforward", "all"))


@pytest.mark.parametrize("sharing", ["attention", "feedforward", "all"])
def test_shared_layers_have_the_output_of_layers_with_equal_parameters(sharing):
    model = build(sharing)
    torch.testing.assert_close(model.logits(IDS), unshared(model).logits(IDS), atol=1e-6, rtol=0)
    assert not torch.allclose(model.logits(IDS), build("none").logits(IDS), atol=1e-3)


@pytest.mark.parametrize("sharing", ["attention", "feedforward", "all"])
def test_the_gradient_is_the_sum_over_the_layers(sharing):
    model = build(sharing)
    twin = unshared(model)
    direction = torch.randn(*IDS.shape, 20)
    for variant in (model, twin):
        (variant.network({"encoder": Stream(IDS)})["encoder"] * direction).sum().backward()
    theirs = {name: weight.grad for name, weight in twin.network.named_parameters()}
    start = "encoder.blocks.0."
    for name, weight in model.network.named_parameters():
        if name.startswith(start):
            shared = name.removeprefix(start).split(".")[0] not in NOT_SHARED[sharing]
            layers = range(3) if shared else [0]
            expected = sum(theirs[name.replace(start, f"encoder.blocks.{layer}.")] for layer in layers)
            torch.testing.assert_close(weight.grad, expected, atol=1e-4, rtol=1e-4)
    assert model.network.encoder.blocks[0].attention.input.weight.grad.abs().max() > 1e-2


def test_parameter_counts_match_the_albert_paper():
    """arXiv:1909.11942, table 4: 12, 64, 38 and 89 million with all, attention, feed-forward or no sharing."""
    with torch.device("meta"):
        counts = [stemma.build("albert", None, [f"network.sharing={mode}"]).parameter_count(heads=False)
                  for mode in ("all", "attention", "feedforward", "none")]
    assert [round(count / 1e6) for count in counts] == [12, 64, 38, 90]  # the paper rounds the last one down


@pytest.mark.parametrize("sharing", ["attention", "all"])
def test_each_parameter_is_trained_once_and_deep_copies_stay_shared(sharing):
    network = build(sharing).network
    settings = stemma.recipe("albert").settings.training.optimizer
    trained = [weight for group in build_optimizer(network, settings, 0.1).param_groups for weight in group["params"]]
    assert len(trained) == len({id(weight) for weight in trained}) == len(network.state_dict())
    twin = copy.deepcopy(network)
    first, second, _ = twin.encoder.blocks
    assert first.attention is second.attention and first.attention is not network.encoder.blocks[0].attention
    twin.double()
    assert second.attention.input.weight.dtype == torch.float64


@pytest.mark.parametrize("sharing", ["attention", "feedforward", "all"])
def test_a_saved_model_loads_with_sharing(tmp_path, sharing):
    model = build(sharing)
    stemma.save(model, tmp_path / "m")
    again = stemma.load(tmp_path / "m")
    assert_close(again.logits(IDS), model.logits(IDS))
    first, second, _ = again.network.encoder.blocks
    assert (first.attention is second.attention) == (sharing != "feedforward")
    assert again.parameter_count() == model.parameter_count()


@torch.no_grad()
@pytest.mark.parametrize("sharing", ["attention", "all"])
def test_each_shared_layer_has_its_own_cache(sharing):
    """The layers share parameters but have different inputs."""
    network = build(sharing, "gpt").network.eval()
    at_once = network({"encoder": Stream(IDS, Causal())})["encoder"]
    cache, parts = KVCache(), []
    for start, stop in ((0, 3), (3, 4), (4, 7)):
        parts.append(network({"encoder": Stream(IDS[:, start:stop], Causal())}, cache)["encoder"])
    torch.testing.assert_close(torch.cat(parts, 1), at_once, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("sharing", ["attention", "feedforward", "all"])
def test_a_decoder_shares_its_layers_too(sharing):
    changes = ("network.decoder.layers=2",)
    model = build(sharing, "bart", changes)
    first, second = model.network.decoder.blocks
    assert (first.cross is second.cross) == (sharing != "feedforward")
    assert first.cross is not model.network.encoder.blocks[0].attention
    expected = unshared(model, "bart", changes).logits(IDS, decoder_input_ids=IDS)
    torch.testing.assert_close(model.logits(IDS, decoder_input_ids=IDS), expected, atol=1e-6, rtol=0)


def test_sharing_with_recurrent_depth_is_refused():
    with pytest.raises(UserError) as error:
        stemma.recipe("universal-transformer@tiny", ["network.sharing=all"])
    assert error.value.problems == [
        ("network.sharing = all", "recurrent depth has one block for all its steps already")]
